// Whole jobs on one to three ranks: what they do beside their steps, and what is in the run's folder afterwards. The
// lists of single events are in tests/unit/training/run/run_schedule_test.cpp.
#include "tests/support/finetune_rig.hpp"

#include <set>

#include "lib/training/state/checkpoint_names.hpp"

using fsdp::ExitCode;
using fsdp::test::FinetuneOutcome;
using fsdp::test::Runs;
using fsdp::test::SignalAfter;
using fsdp::test::Words;
namespace fs = std::filesystem;

namespace {

/// The actions that were decided on, without those that follow from them or depend on a writer's speed.
Words decisions(const FinetuneOutcome& outcome) {
  Words kept;
  for (const auto& action : outcome.actions()) {
    const auto starts = [&](const char* word) { return action.starts_with(word); };
    if (starts("save ") || starts("validate") || starts("amend") || starts("probe") || starts("open") ||
        starts("give up") || starts("roll back") || starts("export") || starts("adapter") || starts("write adapter"))
      kept.push_back(action);
  }
  return kept;
}
}  // namespace

TEST_SUITE("jobs/run_life") {
  TEST_CASE("saves: the last ones stay, --no-save saves nothing") {
    Runs runs;
    CHECK(decisions(runs.run("plain", 2, {"--max-steps", "6", "--save-every", "2", "--keep-last", "1"})) ==
          Words{"open", "save 2", "save 4", "probe 6", "save 6", "write adapter", "export"});
    CHECK(runs.checkpoints("plain") == std::set<std::string>{"latest -> step-00000006", "step-00000006"});
    CHECK(decisions(runs.run("unsaved", 1, {"--max-steps", "3", "--no-save"})) ==
          Words{"open", "probe 3", "write adapter", "export"});
    CHECK(runs.checkpoints("unsaved").empty());
  }

  TEST_CASE("saves by time that no option asks for: the newest stays until there is a newer one") {
    Runs runs;
    runs.save_minutes = 1e-6;
    CHECK(decisions(runs.run("unasked", 2, {"--max-steps", "3"})) ==
          Words{"open", "save for now 1", "save for now 2", "probe 3", "save 3", "write adapter", "export"});
    const std::set<std::string> last{"latest -> step-00000003", "step-00000003"};
    CHECK(runs.checkpoints("unasked") == last);
    // A job that was killed leaves the newest of them to the next one, which needs it until its own is there.
    const auto left = runs.folder("unasked") / "checkpoints/step-00000003";
    auto manifest = fsdp::read_run_manifest(left);
    CHECK_FALSE(manifest.passing);
    manifest.passing = true;
    fsdp::write_run_manifest(left, manifest);
    runs.save_minutes = 30;
    runs.resume("unasked", "--max-steps 5");
    CHECK(runs.checkpoints("unasked") == std::set<std::string>{"latest -> step-00000005", "step-00000005"});

    runs.save_minutes = 1e-6;
    for (const char* asked : {"--save-every 2", "--save-interval-minutes 0"}) {
      const auto actions = decisions(runs.train("asked", std::string("--max-steps 3 ") + asked));
      CHECK(std::none_of(actions.begin(), actions.end(), [](const auto& a) { return a.starts_with("save for"); }));
    }
    CHECK(decisions(runs.train("none", "--max-steps 3 --no-save")) ==
          Words{"open", "probe 3", "write adapter", "export"});
    runs.train("two", "--max-steps 4 --keep-last 2");
    CHECK(runs.checkpoints("two") ==
          std::set<std::string>{"latest -> step-00000004", "step-00000003", "step-00000004"});
    // The next job of a run keeps the run's interval.
    runs.resume("asked", "--max-steps 5");
    CHECK(runs.checkpoints("asked") ==
          std::set<std::string>{"latest -> step-00000005", "step-00000003", "step-00000005"});
  }

  TEST_CASE("--keep-best: kept over restarts on other ranks, until other data decide") {
    Runs runs;
    CHECK(decisions(runs.run("best", 1,
                             {"--max-steps", "6", "--save-every", "4", "--eval-every", "2", "--val-data", runs.noise,
                              "--keep-best"})) == Words{"open", "validate 2", "save for best 2", "save 4", "validate 4",
                                                        "amend 4", "probe 6", "save 6", "write adapter", "validate 6",
                                                        "amend 6", "export"});
    const auto best = runs.state("best").validation;
    CHECK(best.best_step == 2);
    CHECK(runs.state("best", "best").validation.best_value == best.best_value);
    CHECK(decisions(runs.run("best", 3, {"--max-steps", "8", "--restart-checkpoint-file", "latest"})) ==
          Words{"open", "probe 8", "save 8", "write adapter", "validate 8", "amend 8", "export"});
    CHECK(runs.state("best").validation.best_value == best.best_value);
    // The run is done: the state is validated once more, and nothing changes.
    CHECK(decisions(runs.run("best", 2, {"--max-steps", "8", "--restart-checkpoint-file", "latest"})) ==
          Words{"open", "write adapter", "validate 8", "amend 8", "export"});
    CHECK(runs.checkpoints("best") == std::set<std::string>{"best -> step-00000002", "latest -> step-00000008",
                                                            "step-00000002", "step-00000004", "step-00000006",
                                                            "step-00000008"});
    runs.run("best", 2, {"--max-steps", "10", "--restart-checkpoint-file", "latest", "--val-data", runs.rows});
    CHECK(runs.state("best").validation.best_step == 10);
    // From the middle again: the best of the first data was kept for good, and later checkpoints stay.
    const auto middle = (runs.folder("best") / "checkpoints/step-00000004").string();
    CHECK(decisions(runs.run("best", 2, {"--max-steps", "8", "--restart-checkpoint-file", middle})) ==
          Words{"open", "validate 6", "probe 8", "save 8", "write adapter", "validate 8", "amend 8", "export"});
    CHECK(runs.checkpoints("best").contains("best -> step-00000002"));
    CHECK(runs.checkpoints("best").contains("step-00000010"));
    // Another run from the checkpoint of this one knows no best.
    const auto latest = (runs.folder("best") / "checkpoints/latest").string();
    const auto other = runs.run("other", 2, {"--max-steps", "8", "--restart-checkpoint-file", latest});
    CHECK(other.code == ExitCode::ok);
    CHECK(decisions(other) == Words{"open", "write adapter", "validate 8", "save for best 8", "export"});
    CHECK(runs.checkpoints("other") ==
          std::set<std::string>{"best -> step-00000008", "latest -> step-00000008", "step-00000008"});
  }

  TEST_CASE("--keep-best without other saves: each best goes when the next is there and proven") {
    Runs runs;
    CHECK(decisions(runs.run(
              "falling", 2,
              {"--max-steps", "6", "--eval-every", "2", "--val-data", runs.rows, "--keep-best", "--no-save"})) ==
          Words{"open", "validate 2", "save for best 2", "validate 4", "save for best 4", "probe 6", "write adapter",
                "validate 6", "save for best 6", "export"});
    CHECK(runs.state("falling").validation.best_step == 6);
    CHECK_FALSE(runs.checkpoints("falling").contains("step-00000002"));
  }

  TEST_CASE("--patience ends a run, which a larger patience resumes") {
    Runs runs;
    const Words patience{"--eval-every", "2", "--val-data", runs.noise, "--patience", "1", "--lr", "1e-1"};
    auto words = patience;
    words.insert(words.end(), {"--max-steps", "40"});
    const auto ended = runs.run("patience", 2, words);
    const auto last = runs.state("patience").step;
    CHECK(last < 40);
    CHECK(runs.state("patience").validation.without_improvement == 1);
    CHECK(ended.report["ended_early"].get<std::string>().find("1 validation in a row") == 0);
    const auto end = std::to_string(last);
    const auto made = decisions(ended);
    CHECK(Words(made.end() - 6, made.end()) ==
          Words{"validate " + end, "probe " + end, "save " + end, "write adapter", "amend " + end, "export"});
    CHECK(decisions(runs.run("patience", 2, {"--max-steps", "40", "--restart-checkpoint-file", "latest"})) ==
          Words{"open", "write adapter", "amend " + end, "export"});
    const auto more = std::to_string(last + 2);
    runs.run("patience", 2, {"--max-steps", more, "--restart-checkpoint-file", "latest", "--patience", "9"});
    CHECK(runs.state("patience").step == last + 2);
  }

  TEST_CASE("--final best: what is exported has the best state") {
    Runs runs;
    const auto outcome = runs.run("final", 2,
                                  {"--max-steps", "4", "--eval-every", "2", "--val-data", runs.noise, "--lr", "1e-1",
                                   "--keep-best", "--final", "best", "--save-final-full", runs.dir / "full.pt"});
    CHECK(decisions(outcome) ==
          Words{"open", "validate 2", "save for best 2", "probe 4", "save 4", "validate 4", "amend 4", "export"});
    CHECK(outcome.report["final"] == "best");
    CHECK(fs::exists(runs.dir / "full.pt"));
  }

  TEST_CASE("losses that are not finite end the job, and nothing is saved of them") {
    Runs runs;
    const auto soon =
        runs.run("soon", 2, {"--max-steps", "12", "--save-every", "2", "--lr", "1e38", "--max-nonfinite-steps", "3"});
    CHECK(decisions(soon) == Words{"open", "give up"});
    CHECK(soon.code == ExitCode::failed);
    CHECK(soon.error.find("3 steps in a row, 2 to 4") == 0);
    CHECK(runs.checkpoints("soon").empty());
    const auto late = runs.run("late", 1, {"--max-steps", "1", "--lr", "1e38"});
    CHECK(decisions(late) == Words{"open", "probe 1", "give up"});
    CHECK(late.error.find("the model after step 1 has a loss that is not finite") == 0);
    CHECK(runs.checkpoints("late").empty());
  }

  TEST_CASE("a new run of the name moves the older one aside with its first step") {
    Runs runs;
    runs.run("again", 1, {"--max-steps", "1"});
    runs.run("again", 1, {"--max-steps", "2"});
    CHECK(fs::exists(runs.folder("again") / "previous-1/checkpoints/step-00000001"));
    CHECK(runs.checkpoints("again") == std::set<std::string>{"latest -> step-00000002", "step-00000002"});
  }

  TEST_CASE("a signal, and a restart: the step is saved, the validation that was left out is made up for") {
    Runs runs;
    const Words validate{"--eval-every", "1", "--save-every", "3", "--val-data", runs.noise, "--keep-best"};
    auto words = validate;
    words.insert(words.end(), {"--max-steps", "1000000"});
    fsdp::test::FinetuneOutcome stopped;
    {
      const SignalAfter signal(runs.folder("stopped") / "metrics.jsonl", 9);
      stopped = runs.run("stopped", 2, words);
    }
    CHECK(stopped.code == ExitCode::stopped_early);
    CHECK(stopped.report["stopped_early"] == true);
    const auto state = runs.state("stopped");
    const auto end = std::to_string(state.step);
    const auto made = decisions(stopped);
    CHECK(made.back() == "write adapter");
    CHECK(std::count(made.begin(), made.end(), "save " + end) == 1);
    CHECK(std::count(made.begin(), made.end(), "export") == 0);
    CHECK(stopped.report["checkpoint"] ==
          (runs.folder("stopped") / "checkpoints" / fsdp::checkpoint_name(state.step)).string());

    const auto next = std::to_string(state.step + 1);
    const auto resumed =
        decisions(runs.run("stopped", 3, {"--max-steps", next, "--restart-checkpoint-file", "latest"}));
    Words wanted{"open"};
    if (state.validation_due) wanted.insert(wanted.end(), {"validate " + end, "amend " + end});
    wanted.insert(wanted.end(),
                  {"probe " + next, "save " + next, "write adapter", "validate " + next, "amend " + next, "export"});
    CHECK(resumed == wanted);
    CHECK_FALSE(runs.state("stopped", "step-000" + std::string(5 - end.size(), '0') + end).validation_due);
  }
}
