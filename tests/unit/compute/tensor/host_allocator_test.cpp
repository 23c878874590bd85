#include "lib/compute/tensor/host_allocator.hpp"

#include "tests/support/torch_doctest.hpp"

#include <random>
#include <thread>

using namespace fsdp;

namespace {

/// Allocates and frees tensors of random sizes; each keeps its values, so none overlaps another.
void churn(unsigned seed, int rounds) {
  std::mt19937 engine(seed);
  std::vector<std::pair<at::Tensor, float>> held;
  for (int round = 0; round < rounds; ++round) {
    if (held.size() > 12 || (!held.empty() && engine() % 3 == 0)) {
      const auto victim = engine() % held.size();
      const auto& [tensor, value] = held[victim];
      REQUIRE((tensor.numel() == 0 || (tensor.min().item<float>() == value && tensor.max().item<float>() == value)));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      const std::int64_t sizes[] = {0, 1, 100, 200'000, 262'144, 262'145, 1'000'000, 9'000'000};
      const auto value = static_cast<float>(engine() % 1000);
      held.emplace_back(at::full({sizes[engine() % 8]}, value), value);
      REQUIRE(reinterpret_cast<std::uintptr_t>(held.back().first.data_ptr()) % 64 == 0);
    }
  }
}

}  // namespace

TEST_SUITE("tensor/host_allocator") {
  TEST_CASE("allocations never overlap, are aligned, and are all returned") {
    install_host_allocator();
    install_host_allocator();
    const auto before = host_memory_stats();
    churn(1, 400);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) threads.emplace_back([t] { churn(10 + t, 150); });
    for (auto& thread : threads) thread.join();
    const auto after = host_memory_stats();
    CHECK(after.current_bytes == before.current_bytes);
    CHECK(after.allocations > before.allocations + 300);
  }

  TEST_CASE("statistics: requested bytes, their peak, and external memory") {
    install_host_allocator();
    const auto before = host_memory_stats().current_bytes;
    reset_host_memory_peak();
    {
      const auto big = at::empty({10'000'000}, at::kByte);
      CHECK(host_memory_stats().current_bytes == before + 10'000'000);
      const auto small = at::empty({100}, at::kByte);
      CHECK(host_memory_stats().current_bytes == before + 10'000'100);
    }
    CHECK(host_memory_stats().current_bytes == before);
    CHECK(host_memory_stats().peak_bytes == before + 10'000'100);
    reset_host_memory_peak();
    CHECK(host_memory_stats().peak_bytes == before);
    count_external_host_memory(5000);
    CHECK(host_memory_stats().current_bytes == before + 5000);
    count_external_host_memory(-5000);
    CHECK(host_memory_stats().current_bytes == before);
  }

  TEST_CASE("reuse: a freed block serves the next request") {
    install_host_allocator();
    const auto before = host_memory_stats().reserved_bytes;
    void* first = nullptr;
    for (int round = 0; round < 20; ++round) {
      const auto a = at::empty({40'000'000}, at::kByte), b = at::empty({5'000'000}, at::kByte),
                 c = at::empty({3'000'000}, at::kByte);
      if (round == 0) first = a.data_ptr();
      CHECK(a.data_ptr() == first);
    }
    const auto held = host_memory_stats().reserved_bytes - before;
    CHECK(held <= 48'000'000 + 2 * 67'108'864);
  }

  TEST_CASE("impossible requests are an error, not a crash") {
    install_host_allocator();
    CHECK_THROWS(at::empty({std::int64_t{1} << 60}, at::kByte));
    const auto works = at::zeros({1000});
    CHECK(works.sum().item<float>() == 0.0f);
  }
}
