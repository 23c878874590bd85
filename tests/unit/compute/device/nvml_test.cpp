#include "lib/compute/device/nvml.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "tests/support/environment.hpp"

using namespace fsdp;

TEST_SUITE("device/nvml") {
  TEST_CASE("the library tells of the GPU that a UUID or a bus names, and is given back") {
    void* stub = ::dlopen(FSDP_STUB_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(stub != nullptr);
    auto* users = reinterpret_cast<int (*)()>(::dlsym(stub, "stub_nvml_users"));
    REQUIRE(static_cast<bool>(users));
    {
      const auto gpu = NvmlGpu::open("GPU-1", "", FSDP_STUB_NVML_LIBRARY);
      REQUIRE(gpu != nullptr);
      CHECK(users() == 1);
      const auto reading = gpu->read();
      CHECK(reading.use == 0.87);
      CHECK(reading.used_bytes == 12.0 * (1 << 30));
      CHECK(reading.watts == 312.5);
      CHECK(reading.celsius == 61);
      CHECK(reading.megahertz == 1410);
      CHECK(reading.limits == 0x40);
      CHECK(reading.ecc_corrected == 4);
      CHECK(reading.ecc_uncorrected == 1);
      CHECK(reading.remapped_rows == 3);
    }
    CHECK(users() == 0);
    CHECK(NvmlGpu::open("GPU-unknown", "0000:3b:00.0", FSDP_STUB_NVML_LIBRARY) != nullptr);
    CHECK(NvmlGpu::open("GPU-unknown", "0000:00:00.0", FSDP_STUB_NVML_LIBRARY) == nullptr);
    CHECK(NvmlGpu::open("", "", FSDP_STUB_NVML_LIBRARY) == nullptr);
    CHECK(users() == 0);
    ::dlclose(stub);
  }

  TEST_CASE("what a slice of a GPU does not tell is empty") {
    const auto gpu = NvmlGpu::open("MIG-1", "", FSDP_STUB_NVML_LIBRARY);
    REQUIRE(gpu != nullptr);
    CHECK_FALSE(gpu->read().use.has_value());
    CHECK(gpu->read().watts == 312.5);
  }

  TEST_CASE("without the library, or where it does not start, there is nothing") {
    CHECK(NvmlGpu::open("GPU-1", "", "libno-such-library.so.1") == nullptr);
    CHECK(NvmlGpu::open("GPU-1", "", "libm.so.6") == nullptr);  // another library
    const test::Environment environment(test::Environment::Variables{{"FSDP_STUB_NVML", "broken"}});
    CHECK(NvmlGpu::open("GPU-1", "", FSDP_STUB_NVML_LIBRARY) == nullptr);
  }
}
