// Jobs that signals and time limits end: what they leave, say, and how their runs go on.
#include "tests/support/finetune_rig.hpp"

#include <cstdio>

using fsdp::ExitCode;
using fsdp::test::FinetuneOutcome;
using fsdp::test::has_all;
using fsdp::test::Runs;
using fsdp::test::SignalAfter;
using fsdp::test::Words;
namespace fs = std::filesystem;

namespace {

struct Stopping : Runs {
  /// Runs the job until its metrics have some lines, then sends the signal.
  FinetuneOutcome signalled(const std::string& name, int number, int ranks, Words more = {}) {
    const SignalAfter signal(folder(name) / "metrics.jsonl", 9, "loss", number);
    more.insert(more.end(), {"--max-steps", "1000000"});
    return run(name, ranks, more);
  }
  /// Runs the job until its log has the words.
  FinetuneOutcome signalled_after(const std::string& words, const std::string& name, int ranks, const Words& more) {
    fs::remove(dir / "stderr.txt");  // of the job before
    const SignalAfter signal(dir / "stderr.txt", 1, words, SIGUSR1);
    return run(name, ranks, more);
  }
};

/// The words of a command line, as a shell takes them.
Words shell_words(const std::string& line) {
  const auto close = [](FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(::popen(("printf '%s\\n' " + line).c_str(), "r"), close);
  Words words;
  std::string word;
  for (int letter = std::fgetc(pipe.get()); letter != EOF; letter = std::fgetc(pipe.get())) {
    if (letter != '\n') {
      word += static_cast<char>(letter);
      continue;
    }
    words.push_back(word);
    word.clear();
  }
  return words;
}

}  // namespace

TEST_SUITE("jobs/stop") {
  TEST_CASE("a run that a signal stopped continues as an undisturbed one, bit for bit") {
    Stopping runs;
    for (const int number : {SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU}) {
      CAPTURE(number);
      const int ranks = number == SIGTERM ? 2 : 1;
      const auto name = "stopped-" + std::to_string(number);
      const auto stopped = runs.signalled(name, number, ranks);
      CHECK(stopped.code == ExitCode::stopped_early);
      CHECK(has_all(stopped.log, {"stopped   by signal " + std::to_string(number)}));
      CHECK(fs::exists(runs.folder(name) / "checkpoints/latest/run.json"));
    }
    const auto name = "stopped-" + std::to_string(SIGTERM);
    CHECK(std::isfinite(runs.evaluate(runs.folder(name) / "checkpoints/latest", runs.rows)));
    const auto until = "--max-steps " + std::to_string(runs.losses(name).size() + 5);
    runs.train(name, until + " --restart latest", 2);
    runs.train("undisturbed", until, 2);
    CHECK(runs.losses(name) == runs.losses("undisturbed"));
  }

  TEST_CASE("the last line says how to go on: by its command without further options, which does what the job did") {
    Stopping runs;
    const auto out = runs.dir / "all my runs";
    const std::string name = "it's one";
    const auto whole = runs.dir / "at the end.pt";
    FinetuneOutcome stopped;
    {
      const SignalAfter signal(out / name / "metrics.jsonl", 9, "loss");
      stopped = runs.run(name, 1,
                         {"--out-dir", out, "--max-steps", "1000000", "--batch-size", "2", "--forward-prefetch",
                          "--no-limit-all-gathers", "--save-final-full", whole, "--json"});
    }
    REQUIRE(stopped.code == ExitCode::stopped_early);
    const std::string before = "on any number of ranks: ";
    const auto begin = stopped.log.rfind(before);
    REQUIRE(begin != std::string::npos);
    auto words = shell_words(stopped.log.substr(begin + before.size()));
    REQUIRE(words.front() == "fsdp-finetune");
    words.erase(words.begin());
    const auto has = [&](const Words& some) { return !std::ranges::search(words, some).empty(); };
    CHECK(has({"--batch-size", "2"}));
    CHECK(has({"--device", "cpu"}));
    CHECK(has({"--forward-prefetch"}));
    CHECK(has({"--limit-all-gathers=false"}));
    CHECK(has({"--json"}));
    CHECK(!has({"--lr"}));  // the checkpoint has it
    const auto run = fsdp::read_run_manifest(out / name / "checkpoints/latest").state.step + 2;
    words.insert(words.end(), {"--max-steps", std::to_string(run)});
    const auto resumed = fsdp::test::finetune(runs.dir.path(), 1, words);
    CHECK(resumed.code == ExitCode::ok);
    CHECK(resumed.report["steps"] == run);
    CHECK(fs::exists(whole));
    CHECK(resumed.log.find("does not take over") == std::string::npos);
    // Options of the earlier job are not restored, which the log says; without the run's name there is no checkpoint.
    const auto bare =
        fsdp::test::finetune(runs.dir.path(), 1, {"--out-dir", out, "--run-name", name, "--restart", "latest"});
    CHECK(has_all(bare.log, {"--batch-size 2", "--save-final-full '" + whole.string() + "'"}));
    CHECK(bare.log.find("--json") == std::string::npos);
    const auto lost =
        fsdp::test::finetune(runs.dir.path(), 1, {"--out-dir", out, "--restart", "latest", "--device", "cpu"});
    CHECK(lost.code == ExitCode::bad_input);
    CHECK(has_all(lost.error, {name, "--run-name"}));
  }

  TEST_CASE("a time limit leaves a checkpoint, also before the first step") {
    Stopping runs;
    const auto limited = runs.train("limit", "--max-steps 1000000 --time-limit 0:06", 2);
    CHECK(limited.code == ExitCode::stopped_early);
    CHECK(limited.report["stopped_early"] == true);
    CHECK(has_all(limited.log, {"stopped   out of time   step"}));
    CHECK(std::isfinite(runs.evaluate(runs.folder("limit") / "checkpoints/latest", runs.rows)));
    const auto none = runs.train("none", "--max-steps 10 --time-limit 0:01");
    CHECK(none.code == ExitCode::stopped_early);
    CHECK(none.report["steps"] == 0);
    runs.train("none", "--max-steps 3 --restart latest");
    runs.train("undisturbed", "--max-steps 3");
    CHECK(runs.losses("none") == runs.losses("undisturbed"));
  }

  TEST_CASE("evaluation alone is ended by a signal and by the time limit, and has no result") {
    Stopping runs;
    const Words options{
        "--quiet=false", "--max-epochs", "-1", "--val-data",
        "first=" + runs.rows.string() + ",long=" + Runs::write_noise(runs.dir / "long.h5", 4'000'000).string()};
    const auto signalled = runs.signalled_after("   first   loss", "evaluates", 2, options);
    CHECK(signalled.code == ExitCode::stopped_early);
    CHECK(has_all(signalled.log, {"stopped   by signal 10", "before the end of the validation"}));
    CHECK(signalled.log.find("   long   loss") == std::string::npos);
    auto limited_options = options;
    limited_options.insert(limited_options.end(), {"--time-limit", "0:06"});
    const auto limited = runs.run("evaluates", 2, limited_options);
    CHECK(limited.code == ExitCode::stopped_early);
    CHECK(has_all(limited.log, {"stopped   out of time", "before the end of the validation"}));
    CHECK(limited.report["stopped_early"] == true);
    CHECK_FALSE(limited.report.contains("val_loss"));
    CHECK(runs.train("evaluates", "--max-epochs -1 --val-data " + runs.rows.string()).report["stopped_early"] == false);
  }

  TEST_CASE("a text ends where it is asked to: the run is done, or there was nothing but the text") {
    Stopping runs;
    const Words text{"--quiet=false", "--prompt", "To be",        "--tokenizer", "gpt2",
                     "--vocab-size",  "50257",    "--num-tokens", "10000000"};
    auto options = text;
    options.insert(options.end(), {"--max-steps", "1"});
    const auto trained = runs.signalled_after("done ", "trained", 2, options);
    CHECK(trained.code == ExitCode::ok);
    CHECK(has_all(trained.log, {"text      To be", "stopped   by signal 10", "before the end of the text"}));
    options = text;
    options.insert(options.end(), {"--max-epochs", "-1"});
    const auto asked = runs.signalled_after("model ", "not", 2, options);
    CHECK(asked.code == ExitCode::stopped_early);
    CHECK(asked.report["stopped_early"] == true);
    CHECK(has_all(asked.log, {"text      To be", "stopped   by signal 10", "before the end of the text"}));
  }
}
