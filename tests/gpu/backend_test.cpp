// Loads the real libfsdp_cuda.so past the driver check, with or without a GPU: a program that links libtorch_cpu alone
// must be able to, and must get a reason instead of a crash where CUDA cannot work.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "lib/engine/collectives/device_backend.hpp"

namespace {

/// Where it was built, unless it has been packed since (scripts/dist --thin).
std::string cuda_library() {
  const char* moved = std::getenv("FSDP_CUDA_LIBRARY");
  return moved != nullptr ? moved : FSDP_CUDA_LIBRARY;
}

}  // namespace

TEST_SUITE("gpu/backend") {
  TEST_CASE("open_backend: a back end of another build is refused and both builds are named") {
    std::string why_not;
    CHECK(fsdp::detail::open_backend(cuda_library(), "fsdp 0.0.0 of long ago", why_not) == nullptr);
    CAPTURE(why_not);
    CHECK(why_not.find("fsdp 0.0.0 of long ago") != std::string::npos);
    CHECK(why_not.find(fsdp::detail::kDeviceBackendAbi) != std::string::npos);
  }

  TEST_CASE("open_backend: loads into a program without CUDA, and gives a back end or one line why not") {
    std::string why_not;
    const auto backend = fsdp::detail::open_backend(cuda_library(), fsdp::detail::kDeviceBackendAbi, why_not);
    CAPTURE(why_not);
    if (fsdp::detail::cuda_driver_problem().empty()) {
      REQUIRE(backend != nullptr);
      CHECK(backend->device_count() > 0);
    } else {
      CHECK(backend == nullptr);
      MESSAGE("reason: " << why_not);
      // Loading worked, so the reason must be the driver's, not the linker's.
      CHECK(why_not.find("does not load") == std::string::npos);
      CHECK(why_not.size() > 10);
      CHECK(why_not.find('\n') == std::string::npos);
    }
  }
}
