#include "lib/base/types/recent.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using fsdp::Recent;

TEST_SUITE("base/recent") {
  TEST_CASE("a value is computed once for all threads that request it, and again after eviction") {
    Recent<int, std::string> recent(2);
    std::atomic<int> made = 0;
    const auto make = [&] {
      ++made;
      return std::string("value");
    };
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { right += *recent.get(1, make) == "value" ? 1 : 0; });
    }
    for (auto& thread : threads) thread.join();
    CHECK(right == 4);
    CHECK(made == 1);
    const auto kept = recent.get(1, make);
    recent.get(2, make);
    recent.get(3, make);
    CHECK(made == 3);
    CHECK(*kept == "value");
    recent.get(1, make);
    CHECK(made == 4);
  }

  TEST_CASE("an exception reaches the caller, and the next request computes the value again") {
    Recent<int, int> recent(2);
    const auto fail = []() -> int { throw std::runtime_error("no"); };
    CHECK_THROWS_WITH(recent.get(1, fail), "no");
    CHECK(*recent.get(1, [] { return 7; }) == 7);
  }
}
