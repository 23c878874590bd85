// Losses that are not finite: no update, good checkpoints stay, bad models neither become `latest` nor are exported.
// With the learning rate 1e38 the parameters are finite after one step, and the next loss is not.
#include "tests/support/finetune_rig.hpp"

using fsdp::ExitCode;
using fsdp::test::has_all;
using fsdp::test::Runs;
namespace fs = std::filesystem;

TEST_SUITE("jobs/nonfinite") {
  TEST_CASE("a run that explodes ends, keeps the good checkpoint, and continues with a reasonable rate") {
    using Names = std::set<std::string>;
    for (const char* precision : {"float32", "fp16"}) {
      for (const int ranks : {1, 2}) {
        CAPTURE(precision);
        CAPTURE(ranks);
        Runs runs;
        const auto common = " --total-batch-size 4 --precision " + std::string(precision) + " --batch-size " +
                            std::to_string(4 / ranks);
        runs.train("bad", "--max-steps 4" + common, ranks);
        const auto hf = runs.dir / "hf";
        const auto bad = runs.train("bad",
                                    "--max-steps 60 --lr 1e38 --restart latest --save-every 1 --keep-last 1 "
                                    "--save-final-hf " +
                                        hf.string() + common,
                                    ranks);
        CHECK(bad.code == ExitCode::failed);
        CHECK(has_all(bad.error, {"10 steps in a row, 6 to 15", "samples 20 to 59", "step-00000004"}));
        CHECK(has_all(bad.log, {"step 6: the loss is nan", "samples 20 to 23"}));
        // The state after the last finite loss was saved before its loss was known; it may be inspected, but not used.
        CHECK(runs.checkpoints("bad") == Names{"latest -> step-00000004", "step-00000004", "step-00000005"});
        CHECK_FALSE(fs::exists(hf));
        CHECK(runs.evaluate(runs.folder("bad") / "checkpoints/latest", runs.rows) < 6);
        runs.train("bad", "--max-steps 8 --lr 1e-3 --restart latest --keep-last 1" + common, ranks);
        CHECK(runs.checkpoints("bad") == Names{"latest -> step-00000008", "step-00000008"});
        const auto losses = runs.losses("bad");
        CHECK(losses.size() == 8);
        CHECK(std::all_of(losses.begin(), losses.end(), [](double loss) { return std::isfinite(loss); }));
        // As if nothing had happened.
        runs.train("whole", "--max-steps 4" + common, ranks);
        runs.train("whole", "--max-steps 8 --lr 1e-3 --restart latest" + common, ranks);
        CHECK(losses == runs.losses("whole"));
      }
    }
  }

  TEST_CASE("the last update is looked at too") {
    Runs runs;
    for (const char* more : {"", " --no-save"}) {
      const auto hf = runs.dir / "hf", full = runs.dir / "full.pt";
      const auto last = runs.train(
          "last",
          "--max-steps 1 --lr 1e38 --save-final-hf " + hf.string() + " --save-final-full " + full.string() + more, 2);
      CHECK(last.code == ExitCode::failed);
      CHECK(has_all(last.error, {"after step 1", "neither saved nor exported"}));
      CHECK(runs.checkpoints("last").empty());
      CHECK_FALSE(fs::exists(hf));
      CHECK_FALSE(fs::exists(full));
    }
  }

  TEST_CASE("without saves and exports, too") {
    Runs runs;
    for (const int ranks : {1, 2}) {
      const auto ended = runs.train("none", "--max-steps 4 --lr 1e38 --no-save", ranks);
      CHECK(ended.code == ExitCode::failed);
      CHECK(has_all(ended.error, {"after step 4", "a loss that is not finite"}));
    }
    CHECK(runs.train("none", "--max-steps 4 --no-save").code == ExitCode::ok);
  }

  TEST_CASE("the limit is an option; a stop between bad steps leaves the good checkpoint") {
    Runs runs;
    const auto limit = runs.train("limit", "--max-steps 60 --lr 1e38 --max-nonfinite-steps 3");
    CHECK(limit.code == ExitCode::failed);
    CHECK(has_all(limit.error, {"3 steps in a row, 2 to 4", "no checkpoint"}));
    std::vector<bool> skipped;
    for (const auto& record : runs.records("limit")) skipped.push_back(record.value("skipped", false));
    CHECK(skipped == std::vector{false, true, true});
    for (const char* value : {"0", "-1", "nan"})
      CHECK(runs.train("limit", "--max-steps 1 --max-nonfinite-steps " + std::string(value)).code == ExitCode::usage);
    runs.train("stop", "--max-steps 3");
    const fsdp::test::SignalAfter signal(runs.folder("stop") / "metrics.jsonl", 9);
    const auto stopped = runs.train("stop",
                                    "--lr 1e38 --max-steps 1000000 --restart latest --save-every 1 --keep-last 1 "
                                    "--max-nonfinite-steps 100000000 --log-every 1000000");
    CHECK(stopped.code == ExitCode::stopped_early);
    CHECK(runs.checkpoints("stop").contains("latest -> step-00000003"));
  }
}
