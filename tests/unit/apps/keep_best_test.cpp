// --keep-best, --patience and --final on whole jobs: the checkpoint that is kept, the end of a run, and exports.
#include "tests/support/finetune_rig.hpp"

#include <set>

#include "lib/training/state/checkpoint_names.hpp"

using fsdp::ExitCode;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::Words;
namespace fs = std::filesystem;

namespace {

/// Runs that validate every second step. Training makes the loss on `noise` worse and the one on `rows` better.
struct Validating : Runs {
  const std::string on_noise = " --eval-every 2 --val-data " + noise.string();
  const std::string on_rows = " --eval-every 2 --val-data " + rows.string();

  std::string best(const std::string& name) const {
    return fs::read_symlink(folder(name) / "checkpoints/best").string();
  }
  fs::path step(const std::string& name, std::int64_t number) const {
    return folder(name) / "checkpoints" / fsdp::checkpoint_name(number);
  }
  std::set<std::int64_t> steps_validated(const std::string& name) const {
    std::set<std::int64_t> steps;
    for (const auto& [at, loss] : validated(name)) steps.insert(at);
    return steps;
  }
  nlohmann::json json(const fs::path& file) const { return nlohmann::json::parse(fsdp::read_text_file(file)); }
};

using Steps = std::set<std::int64_t>;
using Names = std::set<std::string>;

}  // namespace

TEST_SUITE("jobs/keep_best") {
  TEST_CASE("the best is the checkpoint of its step, and one like any other") {
    Validating runs;
    runs.train("all", "--max-steps 8 --save-every 2" + runs.on_noise, 2);
    CHECK_FALSE(fs::exists(runs.folder("all") / "checkpoints/best"));
    CHECK_FALSE(runs.json(runs.step("all", 8) / "run.json")["state"].contains("validation"));
    const auto report =
        runs.train("rising", "--max-steps 8 --keep-best --save-every 3 --keep-last 1" + runs.on_noise, 2).report;
    auto losses = runs.validated("rising");
    CHECK(losses == runs.validated("all"));
    const auto lowest =
        std::min_element(losses.begin(), losses.end(), [](auto& a, auto& b) { return a.second < b.second; });
    REQUIRE(lowest->first == 2);  // as the data are meant to be
    CHECK(runs.checkpoints("rising") ==
          Names{"best -> step-00000002", "latest -> step-00000008", "step-00000002", "step-00000008"});
    CHECK(report["best_step"] == 2);
    CHECK(report["best_value"] == losses[2]);
    const auto best = runs.folder("rising") / "checkpoints/best";
    CHECK(report["best_checkpoint"] == best.string());
    CHECK(Runs::same_tensors(best, runs.step("all", 2)));
    CHECK_FALSE(Runs::same_tensors(best, runs.step("all", 4)));
    CHECK(runs.evaluate(best, runs.noise, 3) == doctest::Approx(losses[2]).epsilon(1e-6));
    runs.train("rising", "--restart-checkpoint-file best --max-steps 4", 2);
    const auto whole = runs.losses("all");
    CHECK(runs.losses("rising") == std::vector(whole.begin(), whole.begin() + 4));
    CHECK(runs.best("rising") == "step-00000002");
    // --eval-every is the run's, also with another strategy.
    runs.train("rising", "--restart-checkpoint-file latest --max-steps 6 --sharding grad-shard", 3);
    CHECK(runs.steps_validated("rising") == Steps{2, 4, 6});
    CHECK(runs.best("rising") == "step-00000002");
    CHECK(runs.state("rising").validation.best_value == losses[2]);
  }

  TEST_CASE("what was saved for the best alone goes with the next; runs that go back") {
    Validating runs;
    runs.train("falling", "--max-steps 8 --keep-best" + runs.on_rows);
    auto losses = runs.validated("falling");
    REQUIRE((losses[2] > losses[4] && losses[4] > losses[6] && losses[6] > losses[8]));
    const Names names{"best -> step-00000008", "latest -> step-00000008", "step-00000008"};
    CHECK(runs.checkpoints("falling") == names);
    CHECK(runs.state("falling").validation.best_value == losses[8]);
    CHECK_FALSE(runs.json(runs.step("falling", 8) / "run.json").contains("only_as_best"));
    runs.train("falling", "--restart latest --max-steps 8");
    CHECK(runs.checkpoints("falling") == names);
    CHECK(runs.state("falling").validation.best_value == losses[8]);
    // A run that goes back knows no best of steps to come. With learning rate 0 the loss stays that of step 4.
    runs.train("back", "--max-steps 8 --keep-best --save-every 4" + runs.on_rows);
    CHECK(runs.best("back") == "step-00000008");
    runs.train("back", "--lr 0 --max-steps 6 --restart " + runs.step("back", 4).string());
    CHECK(runs.best("back") == "step-00000004");
    CHECK(runs.state("back").validation.best_value == losses[4]);
    CHECK(fs::exists(runs.step("back", 8)));
    // A run that goes back keeps what was saved to stay.
    runs.train("back", "--max-steps 8 --eval-every 1 --lr 1e-3 --restart " + runs.step("back", 4).string());
    losses = runs.validated("back");
    for (int step = 4; step < 8; ++step) REQUIRE(losses[step] > losses[step + 1]);
    CHECK(runs.checkpoints("back") ==
          Names{"best -> step-00000008", "latest -> step-00000008", "step-00000004", "step-00000006", "step-00000008"});
  }

  TEST_CASE("another checkpoint of the best step is not the best; what --final best exports") {
    Validating runs;
    const auto options = " --keep-best" + runs.on_noise, full = (runs.dir / "full.pt").string();
    const auto exports = " --save-final-full " + full;
    runs.train("one", "--max-steps 4 --final best" + options + exports);
    CHECK(runs.best("one") == "step-00000002");
    CHECK(Runs::same_tensors(runs.step("one", 2), full));
    CHECK(fs::read_symlink(runs.folder("one") / "checkpoints/latest") == "step-00000004");
    // A second start of a run that is done changes no options.
    const auto before = runs.json(runs.step("one", 4) / "run.json");
    runs.train("one", "--restart latest --max-steps 4 --final last --optimizer sgd --lr 0.5" + exports, 2);
    CHECK(runs.json(runs.step("one", 4) / "run.json") == before);
    CHECK(Runs::same_tensors(runs.step("one", 4), full));
    runs.train("two", "--max-steps 2 --lr 1e-3 --overwrite" + options + exports);
    CHECK(Runs::same_tensors(runs.step("two", 2), full));
    const auto two =
        runs.train("two", "--max-steps 6 --final best --restart " + runs.step("one", 4).string() + exports);
    CHECK(has_all(two.log, {"warning", "the best checkpoint", "step 2"}));
    CHECK(runs.best("two") == "step-00000006");
    CHECK(Runs::same_tensors(runs.step("two", 6), full));
    CHECK(fs::exists(runs.step("two", 2)));
    // A restart from a run without --keep-best does not keep the folder's earlier best either.
    runs.train("unaware", "--max-steps 4");
    runs.train("two", "--max-steps 6 --restart " + runs.step("unaware", 4).string() + options);
    CHECK(runs.best("two") == "step-00000006");
    CHECK(runs.state("two").validation.best_step == 6);
  }

  TEST_CASE("--patience: the end is told, counts go over requeues, and begin anew with other data and runs") {
    Validating runs;
    const auto first = runs.train("ends", "--max-steps 4 --patience 2" + runs.on_noise, 2);
    CHECK_FALSE(first.report.contains("ended_early"));
    CHECK(runs.state("ends").validation.without_improvement == 1);  // the validation after the last save counts
    const auto ended = runs.train("ends", "--max-steps 20 --restart latest", 3);
    CHECK(has_all(ended.log, {"early     step 6 of 20", "2 validations in a row"}));
    CHECK(has_all(ended.report["ended_early"], {"2 validations in a row"}));
    CHECK(runs.losses("ends").size() == 6);
    CHECK(runs.steps_validated("ends") == Steps{2, 4, 6});
    const auto job = runs.json(runs.folder("ends") / "job.json");
    CHECK(job["outcome"] == "done");
    CHECK(has_all(job["ended_early"], {"2 validations in a row"}));
    CHECK(runs.checkpoints("ends").contains("latest -> step-00000006"));
    const auto again = runs.train("ends", "--max-steps 20 --restart latest");
    CHECK(has_all(again.log, {"nothing to do", "step 6 of 20", "2 validations"}));
    CHECK(runs.losses("ends").size() == 6);
    CHECK(runs.steps_validated("ends") == Steps{2, 4, 6});
    // At its end a run is whole.
    CHECK_FALSE(runs.train("whole", "--max-steps 6 --patience 2" + runs.on_noise).report.contains("ended_early"));
    // Another run is compared with none; with other data the count starts over, with a larger --patience it continues.
    runs.train("second", "--max-steps 10 --restart " + runs.step("ends", 6).string());
    CHECK(runs.steps_validated("second") == Steps{8, 10});
    runs.train("ends", "--max-steps 20 --patience 3 --restart latest");
    CHECK(runs.steps_validated("ends") == Steps{2, 4, 6, 8});
    runs.train("ends", "--max-steps 10 --restart latest --val-data " + runs.rows.string());
    CHECK(runs.steps_validated("ends") == Steps{2, 4, 6, 8, 10});
    runs.train("ends", "--max-steps 12 --patience 0 --restart latest");
    CHECK(runs.steps_validated("ends") == Steps{2, 4, 6, 8, 10, 12});
    // A decrease by less than --min-delta is no improvement.
    const auto small = runs.train("small", "--max-steps 20 --patience 1 --min-delta 3" + runs.on_rows);
    CHECK(has_all(small.log, {"early     step 4 of 20", "1 validation in a row", "more than 3"}));
  }

  TEST_CASE("what cannot be is told before training") {
    Validating runs;
    const auto data = "--val-data " + runs.noise.string();
    for (const auto& [options, facts] : std::vector<std::pair<std::string, Words>>{
             {"--keep-best", {"--keep-best", "--val-data"}},
             {"--patience 2 --eval-every 2", {"--patience", "--val-data"}},
             {data + " --patience 2", {"--patience", "--eval-every"}},
             {data + " --eval-every 2 --patience -1", {"--patience", "negative"}},
             {data + " --min-delta 1", {"--min-delta", "--patience"}},
             {data + " --final best", {"--final best", "--keep-best"}},
             {data + " --keep-best easy", {"--keep-best easy", "loss"}},
             {data + " --final first", {"--final", "first", "last, best"}}}) {
      const auto refused = runs.train("refused", "--max-steps 1 " + options);
      CHECK(refused.code == ExitCode::usage);
      CHECK(has_all(refused.error, facts));
    }
    CHECK_FALSE(fs::exists(runs.folder("refused")));
  }

  TEST_CASE("what others have put in the place of `best` stays; the best is known and exported without its link") {
    Validating runs;
    const auto full = (runs.dir / "full.pt").string();
    runs.train("taken", "--max-steps 2" + runs.on_noise);
    const auto mine = runs.folder("taken") / "checkpoints/best";
    fs::create_directories(mine / "notes");
    const auto taken = runs.train("taken", "--max-steps 4 --restart latest --keep-best --save-every 2");
    CHECK(has_all(taken.log, {"warning", mine.string(), "best checkpoint"}));
    CHECK(taken.report["best_checkpoint"] == runs.step("taken", 4).string());
    const auto later = runs.train("taken", "--max-steps 8 --restart latest --final best --save-final-full " + full);
    CHECK(has_all(later.log, {"warning", mine.string(), "best checkpoint"}));
    CHECK(runs.state("taken").validation.best_step == 4);
    CHECK(Runs::same_tensors(runs.step("taken", 4), full));
    CHECK(fs::exists(mine / "notes"));
    // The link fails after the last save.
    runs.train("late", "--max-steps 2");
    fs::create_directories(runs.folder("late") / "checkpoints/best");
    const auto late = runs.train("late", "--max-steps 4 --restart latest --keep-best --final best --val-data " +
                                             runs.rows.string() + " --overwrite --save-final-full " + full);
    CHECK(has_all(late.log, {"warning", "best checkpoint"}));
    CHECK(Runs::same_tensors(runs.step("late", 4), full));
  }
}
