#include "lib/planning/memory/calibration.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::calibrate_memory;
using fsdp::MemoryOutcome;
using fsdp::read_memory_outcomes;

namespace {

constexpr std::int64_t kA100 = std::int64_t{81050} << 20;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

MemoryOutcome on_a100(std::int64_t predicted_mib, std::int64_t measured_mib, std::int64_t overhead_mib, int nodes = 1) {
  return {"NVIDIA A100-SXM4-80GB", kA100, nodes, 1, predicted_mib * kMiB, measured_mib * kMiB, overhead_mib * kMiB, 0};
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace

TEST_SUITE("memory/calibration") {
  TEST_CASE("the worst underestimate sets the margin, as a fraction of the prediction") {
    const std::vector<MemoryOutcome> runs{on_a100(1000, 1010, 700), on_a100(1000, 980, 800), on_a100(1000, 1001, 750)};

    const auto found = calibrate_memory(runs, {kA100, 1, false});

    CHECK(found.runs == 3);
    CHECK(found.lowest_error == doctest::Approx(-10.0 / 1010));
    CHECK(found.highest_error == doctest::Approx(20.0 / 980));
    CHECK(found.margin() == doctest::Approx(0.01));
    CHECK(found.overhead_bytes == 800 * kMiB);
  }

  TEST_CASE("no margin is needed when no prediction was too low") {
    CHECK(calibrate_memory(std::vector{on_a100(1000, 990, 700)}, {kA100, 1, false}).margin() == 0.0);
    CHECK(calibrate_memory({}, {kA100, 1, false}).margin() == 0.0);
  }

  TEST_CASE("only similar runs count: GPU or CPU for errors, GPU and nodes for overheads") {
    auto cpu = on_a100(1000, 2000, 0);
    cpu.device = "cpu";
    cpu.gpu_bytes = 0;
    auto h200 = on_a100(1000, 1020, 1500);
    h200.gpu_bytes = std::int64_t{143155} << 20;
    const std::vector<MemoryOutcome> runs{cpu, h200, on_a100(1000, 1000, 900, 2)};

    CHECK(calibrate_memory(runs, {0, 1, false}).lowest_error == doctest::Approx(-0.5));
    CHECK_FALSE(calibrate_memory(runs, {0, 1, false}).overhead_bytes.has_value());
    CHECK(calibrate_memory(runs, {kA100, 1, false}).runs == 2);
    CHECK_FALSE(calibrate_memory(runs, {kA100, 1, false}).overhead_bytes.has_value());
    CHECK(calibrate_memory(runs, {kA100, 1, true}).overhead_bytes == 900 * kMiB);
  }

  TEST_CASE("the overhead of a job with fewer communicators is not used for a job with more") {
    auto alone = on_a100(1000, 1000, 500), hybrid = on_a100(1000, 1000, 900);
    alone.communicators = 0;
    hybrid.communicators = 2;
    const std::vector<MemoryOutcome> runs{alone, on_a100(1000, 1000, 700), hybrid};
    const std::vector<MemoryOutcome> few(runs.begin(), runs.begin() + 2);

    CHECK_FALSE(calibrate_memory(std::vector{alone}, {kA100, 1, false}).overhead_bytes.has_value());
    CHECK(calibrate_memory(std::vector{alone}, {kA100, 0, false}).overhead_bytes == 500 * kMiB);
    CHECK(calibrate_memory(few, {kA100, 1, false}).overhead_bytes == 700 * kMiB);
    CHECK_FALSE(calibrate_memory(few, {kA100, 2, false}).overhead_bytes.has_value());
    CHECK(calibrate_memory(runs, {kA100, 2, false}).overhead_bytes == 900 * kMiB);
  }

  TEST_CASE("an absurdly low prediction sets a margin of 1, not more") {
    auto wild = on_a100(1, 1, 0);
    wild.predicted_bytes = 1;
    wild.measured_bytes = std::int64_t{1} << 53;
    CHECK(calibrate_memory(std::vector{wild}, {kA100, 1, false}).margin() == 1.0);
  }

  TEST_CASE("a run with allocation retries does not count for the error") {
    auto retried = on_a100(2000, 1000, 600);
    retried.alloc_retries = 3;

    const auto found = calibrate_memory(std::vector{retried}, {kA100, 1, false});

    CHECK(found.runs == 0);
    CHECK(found.overhead_bytes == 600 * kMiB);
  }

  TEST_CASE("outcomes are read back from a file, a run's directory or a directory of runs") {
    const fsdp::test::TempDir folder;
    const auto runs = folder / "runs";
    write(runs / "a" / "memory.json", to_json(on_a100(1000, 1010, 700)).dump());
    write(runs / "b" / "memory.json", to_json(on_a100(500, 501, 600, 2)).dump());
    write(runs / "c" / "metrics.jsonl", "");

    CHECK(read_memory_outcomes(runs / "a" / "memory.json").size() == 1);
    CHECK(read_memory_outcomes(runs / "a").front().overhead_bytes == 700 * kMiB);
    const auto both = read_memory_outcomes(runs);
    REQUIRE(both.size() == 2);
    CHECK(both[1].nodes == 2);
    CHECK(relative_error(both[1]) == doctest::Approx(-1.0 / 501));
    CHECK(both[0].device == "NVIDIA A100-SXM4-80GB");
  }

  TEST_CASE("errors name files that are not outcomes of a run") {
    const fsdp::test::TempDir folder;
    const auto file = folder / "memory.json";
    const auto refused = [&](const std::string& text, const char* word) {
      write(file, text);
      CHECK_THROWS_WITH_AS(read_memory_outcomes(file), doctest::Contains(word), fsdp::FormatError);
      CHECK_THROWS_WITH_AS(read_memory_outcomes(file), doctest::Contains("memory.json"), fsdp::FormatError);
    };
    refused("{", "JSON");
    refused("[1]", "JSON");
    refused("{}", "device");
    auto json = to_json(on_a100(1000, 1010, 700));
    json["measured_bytes"] = 0;
    refused(json.dump(), "measured_bytes");
    json["measured_bytes"] = 1e300;
    refused(json.dump(), "measured_bytes");
    json["measured_bytes"] = "much";
    refused(json.dump(), "measured_bytes");
    CHECK_THROWS_WITH_AS(read_memory_outcomes(folder / "none" / "memory.json"), doctest::Contains("none"), fsdp::Error);
    std::filesystem::create_directories(folder / "empty");
    CHECK(read_memory_outcomes(folder / "empty").empty());
  }
}
