#include "lib/engine/collectives/device_backend.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <string>

namespace {

/// True if this process has a file of that name mapped.
bool is_mapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_SUITE("comm/device_backend") {
  TEST_CASE("load_cuda_backend: without a driver or device it says so at once and loads no large library") {
    if (fsdp::detail::cuda_driver_problem().empty()) {
      MESSAGE("skipped: this machine has a GPU");
      return;
    }
    REQUIRE(is_mapped("libtorch_cpu"));  // shows that the check below can see libraries
    const auto start = std::chrono::steady_clock::now();
    std::string why_not;
    const auto backend = fsdp::load_cuda_backend(&why_not);
    const std::chrono::duration<double> took_seconds = std::chrono::steady_clock::now() - start;

    CHECK(backend == nullptr);
    CAPTURE(why_not);
    CHECK(why_not.find("NVIDIA") != std::string::npos);
    CHECK(why_not.find('\n') == std::string::npos);
    // Loading libtorch_cuda takes 0.6 s and more; a look for a library takes a millisecond.
    CHECK(took_seconds.count() < 0.3);
    CHECK_FALSE(is_mapped("libtorch_cuda"));
    CHECK_FALSE(is_mapped("libnccl"));
    CHECK_FALSE(is_mapped("libfsdp_cuda"));
  }

  TEST_CASE("load_cuda_backend: the reason is optional") {
    if (fsdp::detail::cuda_driver_problem().empty()) return;
    CHECK(fsdp::load_cuda_backend(nullptr) == nullptr);
  }

  TEST_CASE("backend_candidates: an installed program looks beside itself, lib/fsdp first") {
    const auto candidates = fsdp::detail::backend_candidates("/opt/fsdp/bin");
    REQUIRE(candidates.size() == 2);
    CHECK(candidates[0] == "/opt/fsdp/lib/fsdp/libfsdp_cuda.so");
    CHECK(candidates[1] == "/opt/fsdp/lib/libfsdp_cuda.so");
  }

  TEST_CASE("open_backend: a missing library is named in the reason") {
    std::string why_not;
    CHECK(fsdp::detail::open_backend("/nonexistent/libfsdp_cuda.so", "any", why_not) == nullptr);
    CHECK(why_not.find("/nonexistent/libfsdp_cuda.so") != std::string::npos);
    CHECK(why_not.find('\n') == std::string::npos);
  }

  TEST_CASE("open_backend: a library that is not a back end is refused, naming the missing symbol") {
    std::string why_not;
    CHECK(fsdp::detail::open_backend("libm.so.6", "any", why_not) == nullptr);
    CHECK(why_not.find("fsdp_cuda_backend_abi") != std::string::npos);
  }
}
