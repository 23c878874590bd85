// Validations on several sets, and validations that a job has to leave to the next one.
#include "tests/support/finetune_rig.hpp"

using fsdp::ExitCode;
using fsdp::test::FinetuneOutcome;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::SignalAfter;
using fsdp::test::Words;
namespace fs = std::filesystem;

namespace {

struct ValidatedRuns : Runs {
  /// The job with a signal during its first validation, which takes minutes.
  FinetuneOutcome cut_in_validation(const std::string& name, const std::string& options, int ranks = 1) {
    fs::remove(dir / "stderr.txt");  // of the job before
    const SignalAfter signal(dir / "stderr.txt", 1, "action    validate");
    return train(name, options, ranks);
  }
  fs::path latest(const std::string& name) const { return folder(name) / "checkpoints/latest"; }
  nlohmann::json json_state(const std::string& name) const {
    return nlohmann::json::parse(fsdp::read_text_file(latest(name) / "run.json"))["state"];
  }

  const fs::path endless = write_noise(dir / "endless.h5", 4'000'000);
};

std::vector<std::int64_t> steps_of(const std::map<std::int64_t, double>& validated) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, loss] : validated) steps.push_back(step);
  return steps;
}
using StepList = std::vector<std::int64_t>;

}  // namespace

TEST_SUITE("jobs/validation") {
  TEST_CASE("each of several sets has the losses that it has alone; the named one decides") {
    Runs runs;
    const auto sets = " --val-data easy=" + runs.rows.string() + ",hard-1=" + runs.noise.string();
    runs.train("both", "--max-steps 6 --eval-every 2 --keep-best hard-1" + sets, 2);
    for (const auto& [name, data] : {std::pair("easy", runs.rows), std::pair("hard-1", runs.noise)}) {
      runs.train(name, "--max-steps 6 --eval-every 2 --val-data " + data.string(), 2);
      const auto alone = runs.validated(name);
      CHECK(steps_of(alone) == StepList{2, 4, 6});
      CHECK(runs.validated("both", name) == alone);
      std::vector<std::int64_t> tokens, tokens_alone;
      for (const auto& record : runs.records("both")) {
        if (record.value("val_set", "") == name) tokens.push_back(record["val_tokens"]);
      }
      for (const auto& record : runs.records(name)) {
        if (record.contains("val_tokens")) tokens_alone.push_back(record["val_tokens"]);
      }
      CHECK(tokens == tokens_alone);
    }
    CHECK(runs.losses("both") == runs.losses("easy"));
    const auto hard = runs.validated("both", "hard-1");
    const auto best = std::min_element(hard.begin(), hard.end(), [](auto& a, auto& b) { return a.second < b.second; });
    const auto state = runs.state("both").validation;
    CHECK(state.set == "hard-1");
    CHECK(state.best_value == best->second);
    // Evaluation alone: the first one is the job's loss.
    const auto report = runs.train("only",
                                   "--max-epochs -1 --val-data b=" + runs.noise.string() + ",a=" + runs.rows.string() +
                                       " --restart " + (runs.folder("both") / "checkpoints/latest").string(),
                                   2)
                            .report;
    CHECK(report["val_loss"] == report["val_losses"]["b"]);
    CHECK(report["val_losses"]["a"].get<double>() ==
          doctest::Approx(runs.validated("both", "easy").at(6)).epsilon(1e-6));
  }

  TEST_CASE("sets that cannot be are told before training") {
    Runs runs;
    const auto a = "a=" + runs.rows.string();
    for (const auto& [text, code, facts] : std::vector<std::tuple<std::string, ExitCode, Words>>{
             {a + ",a=" + runs.noise.string(), ExitCode::usage, {"name a", "twice"}},
             {a + ",b=", ExitCode::usage, {"b="}},
             {a + ",b=gone.h5", ExitCode::bad_input, {"--val-data b", "gone.h5"}},
             {"a/b=" + runs.rows.string(), ExitCode::bad_input, {"names of letters"}},
             {"none=" + runs.rows.string(), ExitCode::usage, {"none"}},
             {a + ",b=" + (runs.dir / "nothing.jsonl").string(), ExitCode::bad_input, {"nothing.jsonl"}}}) {
      const auto refused = runs.train("refused", "--max-steps 1 --val-data " + text);
      CHECK(refused.code == code);
      CHECK(has_all(refused.error, facts));
    }
    CHECK_FALSE(fs::exists(runs.folder("refused")));
  }

  TEST_CASE("the step is saved before its validation, which the next start makes") {
    ValidatedRuns runs;
    const std::string options =
        "--max-steps 4 --eval-every 2 --save-every 2 --keep-best --patience 3 --val-data short=" + runs.rows.string();
    const auto cut = runs.cut_in_validation("cut", options + ",long=" + runs.endless.string(), 2);
    CHECK(cut.code == ExitCode::stopped_early);
    CHECK(runs.validated("cut", "short").empty());
    CHECK(runs.state("cut").validation_due);
    const auto stopped = runs.resume("cut", "--time-limit 0:06 --batch-size 3", 2);
    CHECK(stopped.code == ExitCode::stopped_early);
    CHECK(has_all(stopped.log, {"eval        2", "left to the next start", "out of time   step 2 of 4"}));
    CHECK(runs.validated("cut", "short").empty());
    CHECK_FALSE(runs.json_state("cut").contains("validation"));
    const auto short_data = " --val-data short=" + runs.rows.string();
    runs.resume("cut", "--batch-size 3" + short_data, 2);
    runs.train("whole", options, 2);
    CHECK(steps_of(runs.validated("whole", "short")) == StepList{2, 4});
    CHECK(runs.validated("cut", "short") == runs.validated("whole", "short"));
    CHECK(runs.losses("cut") == runs.losses("whole"));
    CHECK(runs.json_state("cut") == runs.json_state("whole"));
    for (const char* name : {"cut", "whole"}) CHECK(runs.checkpoints(name).contains("best -> step-00000004"));
  }

  TEST_CASE("a validation that is found made after all is there once; one at the end is left to the next start too") {
    ValidatedRuns runs;
    const auto on_endless = " --val-data " + runs.endless.string(), on_rows = " --val-data " + runs.rows.string();
    runs.cut_in_validation("twice", "--max-steps 4 --eval-every 2 --save-every 2" + on_endless);
    // As if killed between the writing of the validation's line and its checkpoint.
    std::ofstream(runs.folder("twice") / "metrics.jsonl", std::ios::app)
        << R"({"step": 2, "val_loss": 4.5, "val_tokens": 1, "eval_seconds": 1.0})"
        << "\n";
    runs.resume("twice", on_rows, 2);
    CHECK(steps_of(runs.validated("twice")) == StepList{2, 4});
    CHECK(runs.validated("twice").at(2) != 4.5);
    const auto lines = runs.records("twice");
    CHECK(std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.contains("val_loss"); }) == 2);
    // If the restart has no validations, the run continues without the missing one.
    const auto second = (runs.folder("twice") / "checkpoints/step-00000002").string();
    runs.resume("twice", "--eval-every 0 --restart " + second + on_rows);
    CHECK_FALSE(runs.json_state("twice").contains("validation_due"));
    // The one at the end, also if the next start makes the run longer.
    struct Ending {
      std::string name, more, later;
      StepList validated;
    };
    for (const auto& [name, more, later, validated] :
         {Ending{"end", "", "", {3}}, Ending{"longer", " --eval-every 3", " --max-steps 4", {3, 4}}}) {
      const auto ended = runs.cut_in_validation(name, "--max-steps 3 --no-save" + on_endless + more);
      CHECK(ended.code == ExitCode::stopped_early);
      CHECK(runs.validated(name).empty());
      CHECK(runs.state(name).step == 3);
      runs.resume(name, on_rows + later);
      CHECK(steps_of(runs.validated(name)) == validated);
    }
  }

  TEST_CASE("samples: prompts in brackets are one text, also in a file of options; files of others stay") {
    Runs runs;
    const Words gpt2{"--vocab-size", "50257", "--tokenizer", "gpt2", "--sample-tokens", "1", "--max-steps"};
    const auto sampled = [&](const std::string& name, const Words& more) {
      auto all = gpt2;
      all.insert(all.end(), more.begin(), more.end());
      return runs.run(name, 1, all);
    };
    const auto file = [&](const std::string& name) { return runs.folder(name) / "samples.jsonl"; };
    const std::string prompt = "[INST] Hi, there [/INST]";
    sampled("brackets", {"1", "--sample-prompt", prompt});
    const auto plan = runs.dir / "plan.ini";
    std::ofstream(plan) << "sample-prompt = '" << prompt << "'\n";
    sampled("brackets-file", {"1", "--config", plan});
    for (const char* name : {"brackets", "brackets-file"}) {
      const auto sample = nlohmann::json::parse(fsdp::read_text_file(file(name)));  // one line
      CHECK(sample["prompt"] == prompt);
    }
    const Words vocabulary{gpt2.begin(), gpt2.begin() + 4};
    const auto unsampled = [&](const char* steps, bool restart) {
      auto all = vocabulary;
      all.insert(all.end(), {"--max-steps", steps});
      if (restart) all.insert(all.end(), {"--restart", "latest"});
      return runs.run("theirs", 1, all);
    };
    fs::create_directories(runs.folder("theirs"));
    std::ofstream(file("theirs")) << "my notes\n";
    CHECK(unsampled("1", false).code == ExitCode::ok);
    CHECK(unsampled("2", true).code == ExitCode::ok);
    const auto refused = sampled("theirs", {"3", "--restart", "latest", "--sample-prompt", "e2e4"});
    CHECK(refused.code == ExitCode::bad_input);
    CHECK(has_all(refused.error, {"samples.jsonl, line 1", "--sample-prompt"}));
    CHECK(fsdp::read_text_file(file("theirs")) == "my notes\n");
    CHECK(runs.losses("theirs").size() == 2);
    std::ofstream(file("theirs")) << "{\"step\": \"a\"}\n";
    CHECK(unsampled("3", true).code == ExitCode::ok);
    CHECK(fsdp::read_text_file(file("theirs")) == "{\"step\": \"a\"}\n");
    // A new run moves files of an earlier run of the same name.
    fs::create_directories(runs.folder("alone"));
    std::ofstream(file("alone")) << "my notes\n";
    sampled("alone", {"1", "--sample-prompt", "e2e4"});
    CHECK(fsdp::read_text_file(runs.folder("alone") / "previous-1/samples.jsonl") == "my notes\n");
    CHECK(nlohmann::json::parse(fsdp::read_text_file(file("alone")))["prompt"] == "e2e4");
    // Mistakes are told before training.
    const auto none = sampled("refused", {"1", "--sample-prompt", "a", "--sample-tokens", "0"});
    CHECK(none.code == ExitCode::usage);
    CHECK(has_all(none.error, {"--sample-tokens is 0"}));
    const auto no_steps =
        sampled("refused", {"0", "--max-epochs", "-1", "--sample-prompt", "a", "--val-data", runs.noise});
    CHECK(no_steps.code == ExitCode::usage);
    CHECK(has_all(no_steps.error, {"give --prompt"}));
    const auto small = runs.train("small", "--max-steps 1 --sample-prompt a");  // GPT-2 has more ids than the model
    CHECK(small.code == ExitCode::bad_input);
    CHECK(has_all(small.error, {"do not belong together"}));
  }
}
