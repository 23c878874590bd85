// Loads the real libfsdp_cuda.so past the driver check, with or without a GPU: a program that links only libtorch_cpu
// must be able to load it and must get a reason instead of a crash if CUDA cannot work.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "lib/engine/collectives/device_backend.hpp"

namespace {

/// Returns the path of the build, or FSDP_CUDA_LIBRARY after packing (scripts/dist --thin).
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

  TEST_CASE("open_backend: in a program without CUDA, returns a back end or states in one line why not") {
    std::string why_not;
    const auto backend = fsdp::detail::open_backend(cuda_library(), fsdp::detail::kDeviceBackendAbi, why_not);
    CAPTURE(why_not);
    if (fsdp::detail::cuda_driver_problem().empty()) {
      REQUIRE(backend != nullptr);
      CHECK(backend->device_count() > 0);
    } else {
      CHECK(backend == nullptr);
      MESSAGE("reason: " << why_not);
      // The library loaded, so the reason must come from the driver, not from the linker.
      CHECK(why_not.find("does not load") == std::string::npos);
      CHECK(why_not.size() > 10);
      CHECK(why_not.find('\n') == std::string::npos);
    }
  }
}
