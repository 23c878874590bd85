#include "lib/bf16/error_counters.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "lib/bf16/bandwidth.hpp"
#include "lib/bf16/bf16_gemm.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

TEST_SUITE("bf16/error_counters") {
  TEST_CASE("memory errors are summed over the controllers of the host") {
    const test::TempDir folder;
    const auto write = [&](const char* file, int count) {
      const auto path = folder.path() / "devices/system/edac/mc" / file;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << count << '\n';
    };
    CHECK(error_counts(nullptr, folder.path()).empty());
    write("mc0/ce_count", 4);
    write("mc1/ce_count", 3);
    write("mc0/ue_count", 0);
    const auto before = error_counts(nullptr, folder.path());
    CHECK(before.at("memory errors of the host, corrected") == 7);
    CHECK(before.at("memory errors of the host, not corrected") == 0);
    write("mc1/ce_count", 5);
    const auto counters = counter_facts(before, error_counts(nullptr, folder.path()));
    REQUIRE(counters.size() == 1);
    CHECK(counters[0].name == "memory errors of the host, corrected");
    CHECK(counters[0].before == 7);
    CHECK(counters[0].after == 9);
  }

  TEST_CASE("a GPU's counts come from the driver") {
    const auto gpu = NvmlGpu::open("GPU-1", "", FSDP_STUB_NVML_LIBRARY);
    REQUIRE(gpu != nullptr);
    const test::TempDir folder;
    const auto counts = error_counts(gpu.get(), folder.path());
    CHECK(counts.at("memory errors of the GPU, corrected") == 4);
    CHECK(counts.at("memory errors of the GPU, not corrected") == 1);
    CHECK(counts.at("remapped rows of the GPU's memory") == 3);
  }

  TEST_CASE("products repeat, and memory is copied at a speed") {
    const c10::Device cpu(c10::kCPU);
    CHECK(check_products(
              cpu, [] {}, 3) == "");
    const auto facts = measure_bandwidth(
        cpu, [] {}, 0.01);
    CHECK(facts.copy_gb_per_s > 0.01);
    CHECK(facts.to_device_gb_per_s == 0);
  }
}
