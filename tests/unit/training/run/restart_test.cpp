#include "lib/training/run/restart.hpp"

#include <doctest/doctest.h>

#include <array>
#include <mutex>
#include <set>
#include <span>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "tests/support/temp_files.hpp"

namespace fs = std::filesystem;
using fsdp::ProcessGroup;
using fsdp::test::TempDir;

namespace {

/// A checkpoint with hardly any tensors: enough to be chosen.
void make_checkpoint(const fs::path& folder, std::int64_t step) {
  fs::create_directories(folder);
  const std::array<float, 2> data{1, 2};
  fsdp::DcpShardWriter writer(folder, 0);
  writer.add_tensor(
      {"model.transformer.wpe.weight", fsdp::DType::f32, {1, 2}, {0, 0}, {1, 2}, std::as_bytes(std::span(data))},
      {"model", "transformer.wpe.weight"});
  fsdp::write_dcp_metadata(folder, writer.finish());
  fsdp::RunManifest manifest;
  manifest.state.step = step;
  fsdp::write_run_manifest(folder, manifest);
}

/// RUN/checkpoints with steps 2, 4 and 10, latest at 10.
fs::path make_run(const TempDir& dir) {
  const auto checkpoints = dir / "run/checkpoints";
  make_checkpoint(checkpoints / "step-00000002", 2);
  make_checkpoint(checkpoints / "step-00000004", 4);
  make_checkpoint(checkpoints / "step-00000010", 10);
  fs::create_directory_symlink("step-00000010", checkpoints / "latest");
  return checkpoints;
}

std::string refusal(const std::string& text, const fs::path& checkpoints) {
  try {
    fsdp::checkpoint_candidates(text, checkpoints);
  } catch (const fsdp::MissingInput& error) {
    return error.what() + (" " + error.advice().subject);
  }
  return "";
}

/// The steps that all ranks go on from.
std::set<std::int64_t> restart_of(const fs::path& checkpoints, const std::string& text, int ranks) {
  std::set<std::int64_t> steps;
  std::mutex mutex;
  fsdp::run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
    fsdp::TrainOptions options;
    options.restart_checkpoint = text;
    const fsdp::Logger log(world.rank(), fsdp::LogLevel::error);
    const auto point = fsdp::find_restart(world, options, checkpoints, log);
    const std::lock_guard lock(mutex);
    steps.insert(point->manifest.state.step);
  });
  return steps;
}

}  // namespace

TEST_SUITE("run/restart") {
  TEST_CASE("latest stands for the newest checkpoint, and the older ones after it") {
    const TempDir dir;
    const auto checkpoints = make_run(dir);
    for (const std::string& text : {std::string("latest"), (checkpoints / "latest").string(), checkpoints.string(),
                                    checkpoints.parent_path().string()}) {
      CAPTURE(text);
      CHECK(fsdp::names_latest(text));
      const auto found = fsdp::checkpoint_candidates(text, checkpoints);
      REQUIRE(found.size() == 3);
      CHECK(found[0].filename() == "step-00000010");
      CHECK(found[2].filename() == "step-00000002");
    }
    const auto one = (checkpoints / "step-00000004").string();
    CHECK_FALSE(fsdp::names_latest(one));
    CHECK(fsdp::checkpoint_candidates(one, checkpoints).size() == 1);
  }

  TEST_CASE("a link that points at an older checkpoint is believed") {
    const TempDir dir;
    const auto checkpoints = make_run(dir);
    fs::remove(checkpoints / "latest");
    fs::create_directory_symlink("step-00000004", checkpoints / "latest");
    CHECK(fsdp::checkpoint_candidates("latest", checkpoints).front().filename() == "step-00000004");
  }

  TEST_CASE("without the link, the newest step counts under every name of the run") {
    const TempDir dir;
    const auto checkpoints = make_run(dir), latest = checkpoints / "latest";
    const auto check = [&](const std::string& newest) {
      for (const auto& path : {latest, checkpoints, checkpoints.parent_path()}) {
        CAPTURE(path);
        CHECK(fsdp::names_latest(path));
        CHECK(fsdp::checkpoint_candidates(path, dir / "none").front().filename() == newest);
        CHECK(fsdp::checkpoint_in_run(path).filename() == newest);
      }
      CHECK(fsdp::checkpoint_candidates("latest", checkpoints).front().filename() == newest);
    };
    fs::remove(latest);
    check("step-00000010");
    fsdp::replace_file(latest, "step-00000002");  // as stores without links keep it
    check("step-00000010");
    fs::remove(latest);
    make_checkpoint(latest, 4);  // as copies that follow links do, which went on afterwards
    check("step-00000010");
    fs::remove(latest / "run.json");
    check("step-00000010");
    make_checkpoint(latest, 12);
    check("latest");
    for (const char* step : {"step-00000002", "step-00000004", "step-00000010"}) fs::remove_all(checkpoints / step);
    make_checkpoint(latest, 4);
    check("latest");
  }

  TEST_CASE("a save that was killed between its renames counts under its name") {
    const TempDir dir;
    const auto checkpoints = make_run(dir);
    fs::rename(checkpoints / "step-00000010", checkpoints / ".step-00000010.old");
    CHECK(restart_of(checkpoints, "latest", 1) == std::set<std::int64_t>{10});
  }

  TEST_CASE("where there is nothing, the message says what there is instead") {
    const TempDir dir;
    const auto checkpoints = make_run(dir);
    CHECK(refusal((dir / "nowhere").string(), checkpoints).find("no such checkpoint") != std::string::npos);
    make_checkpoint(dir / "moved/previous-2/checkpoints/step-00000001", 1);
    fs::create_directory_symlink("step-00000001", dir / "moved/previous-2/checkpoints/latest");
    fs::create_directories(dir / "moved/previous-1");
    CHECK(refusal("latest", dir / "moved/checkpoints").find("previous-2/checkpoints/latest") != std::string::npos);
    // Another name was meant: those that have checkpoints are listed.
    const auto lost = refusal("latest", dir / "other/checkpoints");
    CHECK(lost.find("moved") == std::string::npos);
    CHECK(lost.find(dir.path().string() + " that have some: run") != std::string::npos);
    CHECK(refusal("latest", dir / "moved/checkpoints/x/checkpoints").find("holds no run that has any") !=
          std::string::npos);
    fs::create_directories(dir / "empty");
    fsdp::replace_file(dir / "empty/metrics.jsonl", "{}\n");
    CHECK(refusal((dir / "empty").string(), checkpoints).find("a run without checkpoints") != std::string::npos);
  }

  TEST_CASE("all ranks take the first checkpoint that is usable on every one") {
    const TempDir dir;
    const auto checkpoints = make_run(dir);
    fsdp::replace_file(checkpoints / "step-00000010/run.json", "{");
    for (const int ranks : {1, 3}) CHECK(restart_of(checkpoints, "latest", ranks) == std::set<std::int64_t>{4});
    CHECK_THROWS_AS(restart_of(checkpoints, (checkpoints / "step-00000010").string(), 2), fsdp::FormatError);
    for (const char* step : {"step-00000004", "step-00000002"}) fsdp::replace_file(checkpoints / step / "run.json", "");
    CHECK_THROWS_AS(restart_of(checkpoints, "latest", 2), fsdp::FormatError);
  }

  TEST_CASE("the model is the checkpoint's, with the sequence that was asked for") {
    fsdp::TrainOptions options;
    fsdp::RestartPoint point;
    point.knows_run = true;
    point.manifest.config.block_size = 64;
    point.manifest.config.num_layers = 3;
    options.model.dropout = 0.25;
    const auto config = fsdp::plan_model(options, point);
    CHECK(config.num_layers == 3);
    CHECK(config.dropout == 0.25);
    options.model.seq_len = 65;
    CHECK_THROWS_AS(fsdp::plan_model(options, point), fsdp::RequestError);
    options.model.seq_len = 12;
    CHECK(fsdp::plan_model(options, std::nullopt).block_size == 12);
  }
}
