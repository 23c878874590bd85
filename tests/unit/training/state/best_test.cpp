#include "lib/training/state/best.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "lib/base/types/error.hpp"
#include "lib/training/state/checkpoint_names.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
namespace fs = std::filesystem;

namespace {

/// Nothing but its run.json.
void make_checkpoint(const fs::path& folder, std::int64_t step, std::int64_t best_step, double best_value,
                     bool passing = false) {
  RunManifest manifest;
  manifest.config.num_layers = 1;
  manifest.config.num_heads = 1;
  manifest.config.embed_size = 8;
  manifest.config.ffn_hidden_size = 8;
  manifest.config.vocab_size = 11;
  manifest.state.step = step;
  manifest.passing = passing;
  manifest.state.validation = {.step = step, .set = "a", .count = 5, .best_value = best_value, .best_step = best_step};
  fs::create_directories(folder / checkpoint_name(step));
  write_run_manifest(folder / checkpoint_name(step), manifest);
}

ValidationState known(std::int64_t step, double loss) {
  ValidationState state;
  state.step = state.best_step = step;
  state.best_value = loss;
  state.set = "a";
  state.count = 5;
  return state;
}

}  // namespace

TEST_SUITE("checkpoint/best") {
  TEST_CASE("reconcile_best: the link follows what the run that goes on knows") {
    const test::TempDir temporary;
    const auto& folder = temporary.path();
    make_checkpoint(folder, 2, 2, 3.0);
    make_checkpoint(folder, 6, 6, 1.5);
    point_best_to(folder, 6);
    CHECK(best_link(folder) == 6);

    const auto gone_on = reconcile_best(folder, known(6, 1.5), 6);
    CHECK(gone_on.step == 6);
    CHECK(gone_on.remark.empty());

    const auto gone_back = reconcile_best(folder, known(2, 3.0), 4);
    CHECK(gone_back.step == 2);
    CHECK(gone_back.value == 3.0);
    CHECK(best_link(folder) == 2);
  }

  TEST_CASE("reconcile_best: a best of steps that the run has not come to is none, its checkpoint stays") {
    const test::TempDir temporary;
    const auto& folder = temporary.path();
    make_checkpoint(folder, 6, 6, 1.5);
    point_best_to(folder, 6);
    const auto lost = reconcile_best(folder, known(2, 3.0), 4);
    CHECK(lost.step == -1);
    CHECK(std::isnan(lost.value));
    CHECK(lost.remark.find("step 2") != std::string::npos);
    CHECK(best_link(folder) == -1);
    CHECK(fs::exists(folder / checkpoint_name(6) / "run.json"));
    CHECK(reconcile_best(folder, {}, 4).remark.empty());
  }

  TEST_CASE("reconcile_best: what the link leads to is no best of a run that does not know it, and stays") {
    const test::TempDir temporary;
    const auto& folder = temporary.path();
    make_checkpoint(folder, 2, 2, 3.0, /*passing=*/true);
    point_best_to(folder, 2);
    CHECK(reconcile_best(folder, {}, 4).step == -1);
    CHECK(best_link(folder) == -1);
    CHECK_FALSE(read_run_manifest(folder / checkpoint_name(2)).passing);
  }

  TEST_CASE("reconcile_best: a link to what is gone goes, one to somewhere else is somebody's and stays") {
    const test::TempDir temporary;
    const auto folder = temporary.path() / "checkpoints", elsewhere = temporary.path() / "elsewhere";
    make_checkpoint(elsewhere, 2, 2, 3.0);
    fs::create_directories(folder);
    point_best_to(folder, 2);
    CHECK(reconcile_best(folder, known(2, 3.0), 4).step == -1);
    CHECK_FALSE(fs::is_symlink(folder / "best"));
    fs::create_directory_symlink(elsewhere / checkpoint_name(2), folder / "best");
    CHECK(reconcile_best(folder, {}, 4).step == -1);
    CHECK(reconcile_best(folder, known(2, 3.0), 4).step == -1);
    CHECK(fs::read_symlink(folder / "best") == elsewhere / checkpoint_name(2));
    make_checkpoint(folder, 4, 4, 2.0);
    CHECK(reconcile_best(folder, known(4, 2.0), 4).remark.find("is not the link to the best checkpoint") !=
          std::string::npos);
    CHECK(fs::read_symlink(folder / "best") == elsewhere / checkpoint_name(2));
  }

  TEST_CASE("reconcile_best: another checkpoint of that step is not the best, and stays") {
    const test::TempDir temporary;
    const auto& folder = temporary.path();
    make_checkpoint(folder, 2, 2, 2.5, /*passing=*/true);
    point_best_to(folder, 2);
    CHECK(holds_best(folder, known(2, 2.5)));
    CHECK_FALSE(holds_best(folder, known(2, 3.0)));
    CHECK_FALSE(holds_best(folder, known(3, 2.5)));
    const auto best = reconcile_best(folder, known(2, 3.0), 4);
    CHECK(best.step == -1);
    CHECK(best.remark.find("of step 2 with a loss of 3.0000") != std::string::npos);
    CHECK(best_link(folder) == -1);
    CHECK_FALSE(read_run_manifest(folder / checkpoint_name(2)).passing);
  }

  TEST_CASE("reconcile_best: the loss of other data is no best of this run") {
    const test::TempDir temporary;
    make_checkpoint(temporary.path(), 2, 2, 2.5);
    point_best_to(temporary.path(), 2);
    ValidationState other;
    other.step = 4;
    other.set = "b";
    other.count = 5;
    CHECK(reconcile_best(temporary.path(), other, 4).step == -1);
  }

  TEST_CASE("reconcile_best: what lies ahead is kept as a regular checkpoint") {
    const test::TempDir temporary;
    const auto& folder = temporary.path();
    for (const std::int64_t step : {2, 4, 6})
      make_checkpoint(folder, step, step, 7.0 - static_cast<double>(step), true);
    point_best_to(folder, 6);
    CHECK(reconcile_best(folder, known(4, 3.0), 4).step == 4);
    CHECK(read_run_manifest(folder / checkpoint_name(2)).passing);
    CHECK(read_run_manifest(folder / checkpoint_name(4)).passing);
    CHECK_FALSE(read_run_manifest(folder / checkpoint_name(6)).passing);
  }

  TEST_CASE("reconcile_best: a best without a link is the best all the same") {
    const test::TempDir temporary;
    make_checkpoint(temporary.path(), 2, 2, 3.0);
    fs::create_directory(temporary.path() / "best");
    const auto best = reconcile_best(temporary.path(), known(2, 3.0), 4);
    CHECK(best.step == 2);
    CHECK(best.value == 3.0);
    CHECK(best.remark.find("is not the link to the best checkpoint") != std::string::npos);
  }

  TEST_CASE("point_best_to: what somebody else has put there stays") {
    const test::TempDir temporary;
    const auto& folder = temporary.path();
    fs::create_directory_symlink("elsewhere", folder / "best");
    CHECK_THROWS_AS(point_best_to(folder, 2), IoError);
    CHECK(fs::read_symlink(folder / "best") == "elsewhere");
    CHECK(best_link(folder) == -1);
    fs::remove(folder / "best");
    fs::create_directory(folder / "best");
    CHECK_THROWS_AS(point_best_to(folder, 2), IoError);
  }
}
