// Rates of devices from the GPU table, from measurements of the check and from earlier runs.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/planning/speed/speed_outcome.hpp"
#include "tests/support/temp_files.hpp"

namespace fsdp::test {
namespace {

std::filesystem::path write_json(const TempDir& directory, const std::string& name, const nlohmann::json& json) {
  const auto file = directory.path() / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << json;
  return file;
}

nlohmann::json check_of(double bf16, double float32, const char* device_type = "cpu") {
  nlohmann::json rank{{"device", "a processor"}, {"device_type", device_type}};
  rank["gemm"] = {{"bf16_tflops", bf16}, {"float32_tflops", float32}};
  auto slower = rank;
  slower["gemm"]["bf16_tflops"] = bf16 / 2;
  return {{"ranks", {rank, slower}},
          {"inside_nodes", {{{"bus_gb_per_s", 200.0}}, {{"bus_gb_per_s", 100.0}}}},
          {"between_nodes", {{"bus_gb_per_s", 20.0}}}};
}

SpeedOutcome outcome_of(const std::string& device, double predicted, double measured) {
  SpeedOutcome outcome;
  outcome.device = outcome.model = device;
  outcome.rates = rates_of_processor(1e11, 2e11, "a test");
  outcome.tokens = 100;
  outcome.predicted.seconds = predicted;
  outcome.predicted.parts[static_cast<std::size_t>(StepPart::block)] = predicted;
  outcome.seconds = measured;
  outcome.parts[static_cast<std::size_t>(StepPart::block)] = measured;
  return outcome;
}

}  // namespace

TEST_SUITE("speed/rates") {
  TEST_CASE("GPUs are found by the driver's name and by the name for --gpu") {
    constexpr std::int64_t kGiB = std::int64_t{1} << 30;
    const auto name = [](const char* device, std::int64_t bytes, int capability) {
      return std::string(facts_of_gpu(device, bytes, capability).name);
    };
    CHECK(name("NVIDIA A100-SXM4-40GB", 39 * kGiB, 80) == "a100-40g");
    CHECK(name("NVIDIA A100-SXM4-80GB", 79 * kGiB, 80) == "a100-80g");
    CHECK(name("NVIDIA H100 80GB HBM3", 79 * kGiB, 90) == "h100");
    CHECK(name("NVIDIA GH200 480GB", 95 * kGiB, 90) == "gh200-96g");
    CHECK(name("NVIDIA L40S", 44 * kGiB, 89) == "l40s");
    CHECK(name("NVIDIA L4", 22 * kGiB, 89) == "l4");
    CHECK(name("NVIDIA GeForce RTX 4090", 23 * kGiB, 89) == "rtx-4090");
    CHECK(name("v100-32g", 31 * kGiB, 70) == "v100-32g");
    CHECK(name("something new", 180 * kGiB, 100) == "b200");
    // A name that contains another GPU's letters must not match that GPU.
    for (const char* other : {"NVIDIA L40", "NVIDIA A10G", "NVIDIA RTX A4000", "NVIDIA RTX A3000", "NVIDIA T400 4GB"}) {
      CAPTURE(other);
      CHECK(peak_of_gpu(other).bf16 == 0);
    }
    CHECK(peak_of_gpu("NVIDIA H100 PCIe").bf16 == 756);
    CHECK(peak_of_gpu("something new").bf16 == 0);
    for (const auto& gpu : known_gpus()) {
      const auto rates = rates_of_gpu(gpu);
      CHECK(rates.half_flops > 0);
      CHECK(rates.half_flops < rates.half_peak);
      CHECK(rates_from_json(to_json(rates), "here").bytes_per_second == doctest::Approx(rates.bytes_per_second));
    }
  }

  TEST_CASE("take_check uses the slowest rank and the measured link bandwidths") {
    const TempDir directory;
    auto rates = rates_of_gpu(facts_of_gpu("a100-80g", 0, 80));
    take_check(write_json(directory, "gpu.json", check_of(250, 18, "cuda")), rates, 1);
    CHECK(rates.half_flops == doctest::Approx(125e12));
    CHECK(rates.half_peak == doctest::Approx(312e12));
    CHECK(rates.link_bytes_per_second == doctest::Approx(100e9));
    CHECK(rates.network_bytes_per_second == doctest::Approx(20e9));

    DeviceRates host;
    CHECK(take_check(write_json(directory, "host.json", check_of(0.8, 0.2)), host, 2) == "a processor");
    CHECK(host.half_flops == doctest::Approx(0.2e12));
    CHECK(host.float32_flops == doctest::Approx(0.1e12));
    CHECK_THROWS_AS(take_check(directory.path() / "gpu.json", host, 1), FormatError);
  }

  TEST_CASE("errors name files of another kind") {
    const TempDir directory;
    DeviceRates rates;
    for (const auto& json : {nlohmann::json::array(), nlohmann::json{{"ranks", "none"}}, check_of(0, 0),
                             nlohmann::json{{"ranks", {{{"gemm", 3}}}}}}) {
      const auto file = write_json(directory, "wrong.json", json);
      CHECK_THROWS_WITH_AS(take_check(file, rates, 1), doctest::Contains("wrong.json"), FormatError);
    }
    auto right = to_json(outcome_of("a", 1, 1));
    CHECK(read_speed_outcomes(write_json(directory, "run/speed.json", right)).size() == 1);
    for (const char* key : {"device", "model", "rates", "predicted", "measured", "tokens_per_step", "cores"}) {
      auto json = right;
      json[key] = -1;
      const auto file = write_json(directory, "run/speed.json", json);
      CHECK_THROWS_WITH_AS((void)read_speed_outcomes(file), doctest::Contains("speed.json"), FormatError);
    }
  }

  TEST_CASE("earlier runs on the same device correct each part by their median") {
    auto rates = rates_of_processor(3e11, 4e11, "now");
    const std::vector<SpeedOutcome> outcomes{outcome_of("mine", 1.0, 1.1), outcome_of("mine", 1.0, 1.4),
                                             outcome_of("mine", 1.0, 1.2), outcome_of("other", 1.0, 9.0)};
    const auto calibration = calibrate_speed(outcomes, {"mine"}, rates);
    CHECK(calibration.runs == 3);
    CHECK(calibration.lowest_error == doctest::Approx(0.1));
    CHECK(calibration.highest_error == doctest::Approx(0.4));
    CHECK(rates.factors[static_cast<std::size_t>(StepPart::block)] == doctest::Approx(1.2));
    CHECK(rates.factors[static_cast<std::size_t>(StepPart::head)] == 1);
    // Only the speed of products in the runs' precision changes.
    CHECK(rates.float32_flops == doctest::Approx(1e11));
    CHECK(rates.half_flops == doctest::Approx(4e11));

    auto unchanged = rates_of_processor(3e11, 4e11, "now");
    CHECK(calibrate_speed(outcomes, {"nobody's"}, unchanged).runs == 0);
    CHECK(unchanged.source == "now");
  }

  TEST_CASE("runs with and without fp8 products do not calibrate each other") {
    const TempDir directory;
    auto eight_bits = outcome_of("mine", 1.0, 5.0);
    eight_bits.has_fp8_products = true;
    write_json(directory, "eight/speed.json", to_json(eight_bits));
    auto older = to_json(outcome_of("mine", 1.0, 2.0));
    older.erase("fp8");
    write_json(directory, "older/speed.json", older);
    const auto outcomes = read_speed_outcomes(directory.path());
    REQUIRE(outcomes.size() == 2);
    for (const bool fp8 : {true, false}) {
      auto rates = rates_of_processor(3e11, 4e11, "now");
      CHECK(calibrate_speed(outcomes, {"mine", fp8}, rates).runs == 1);
      CHECK(rates.factors[static_cast<std::size_t>(StepPart::block)] == doctest::Approx(fp8 ? 5.0 : 2.0));
    }
  }

  TEST_CASE("impossible figures change nothing, and no rate becomes 0") {
    auto rates = rates_of_processor(3e11, 4e11, "now");
    auto nothing = outcome_of("mine", 1.0, 1.0);
    nothing.rates.factors.fill(0);
    const std::vector<SpeedOutcome> outcomes{outcome_of("mine", 1e-300, 1.0), outcome_of("mine", 1.0, 1e9), nothing};
    (void)calibrate_speed(outcomes, {"mine"}, rates);
    for (const double factor : rates.factors) CHECK(factor == 1);
    auto json = to_json(rates);
    json["float32_flops"] = 0;
    CHECK_THROWS_AS((void)rates_from_json(json, "here"), FormatError);
  }

  TEST_CASE("a directory of runs yields the runs that have a speed.json") {
    const TempDir directory;
    write_json(directory, "a/speed.json", to_json(outcome_of("a", 1, 2)));
    std::filesystem::create_directory(directory.path() / "b");
    const auto outcomes = read_speed_outcomes(directory.path());
    REQUIRE(outcomes.size() == 1);
    CHECK(relative_error(outcomes[0]) == doctest::Approx(1));
    CHECK(outcomes[0].parts[0] == doctest::Approx(2));
  }
}

}  // namespace fsdp::test
