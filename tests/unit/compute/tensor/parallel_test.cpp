#include "lib/compute/tensor/parallel.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

using fsdp::parallel_for;

TEST_SUITE("tensor/parallel") {
  TEST_CASE("work is divided among LibTorch's threads, each with its own part") {
    const auto threads = at::get_num_threads();
    at::set_num_threads(3);
    std::mutex mutex;
    std::set<std::pair<std::int64_t, std::int64_t>> parts;
    std::set<std::thread::id> ids;
    const auto note = [&](std::int64_t begin, std::int64_t end) {
      const std::lock_guard lock(mutex);
      parts.emplace(begin, end);
      ids.insert(std::this_thread::get_id());
    };
    parallel_for(30, 10, note);
    CHECK(parts == std::set<std::pair<std::int64_t, std::int64_t>>{{0, 10}, {10, 20}, {20, 30}});
    CHECK(ids.size() == 3);
    parts.clear();
    parallel_for(30, 30, note);  // too little work for two threads
    CHECK(parts.size() == 1);
    CHECK_THROWS_AS(parallel_for(30, 10, [](auto, auto) { throw std::runtime_error("no"); }), std::runtime_error);
    at::set_num_threads(threads);
  }
}
