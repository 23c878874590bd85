#pragma once
// Jobs of fsdp-finetune on thread ranks, by their command lines: milliseconds instead of a start of processes.
#include "tests/support/reproducible_products.hpp"
#include "tests/support/torch_doctest.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "apps/common/app_main.hpp"
#include "apps/common/remedies.hpp"
#include "apps/convert/convert_job.hpp"
#include "apps/finetune/finetune_job.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/token_files/token_file_writer.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "tests/support/captured_stderr.hpp"
#include "tests/support/small_job.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tries.hpp"

namespace fsdp::test {

/// A job measures the processor's peak for a sixth of a second unless the peak is known.
inline const bool kKnownPeak = ::setenv("FSDP_CPU_FLOPS", "1e11", /*overwrite=*/0) == 0;

using Words = std::vector<std::string>;

/// The words of a text between blanks.
inline Words words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// True if the text has all of the words in it.
inline bool has_all(const std::string& text, const Words& facts) {
  return std::all_of(facts.begin(), facts.end(), [&](const auto& fact) {
    const bool found = text.find(fact) != std::string::npos;
    if (!found) MESSAGE(fact, " is not in: ", text);
    return found;
  });
}

struct FinetuneOutcome {
  ExitCode code = ExitCode::ok;
  std::string error;      ///< of a job that failed
  nlohmann::json report;  ///< what --json prints
  std::string log;        ///< standard error of all ranks, debug lines included
  /// \return the actions of RunExecutor, in order: "validate 2", "save 4", "latest 4", ...
  Words actions() const {
    Words found;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("action    ")) found.push_back(line.substr(10));
    }
    return found;
  }
};

/// Parses the command line on every rank, as the program does, and runs the job. \param folder  for temporary files
/// \param save_minutes  default of --save-interval-minutes
inline FinetuneOutcome finetune(const std::filesystem::path& folder, int ranks, const Words& arguments,
                                double save_minutes = 30) {
  FinetuneOutcome outcome;
  CapturedStderr captured(folder / "stderr.txt");
  try {
    run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
      OptionTable app("", "fsdp-finetune");
      FinetuneArguments parsed;
      parsed.options.save_interval_minutes = save_minutes;
      add_finetune_options(app, parsed);
      Words reversed(arguments.rbegin(), arguments.rend());
      app.parse(reversed);
      normalize_finetune_options(app, parsed);
      nlohmann::json report;
      const Logger log(world.rank(), LogLevel::debug);
      JobEvents events("");
      const auto code = run_finetune_job(app, parsed, events, world, log, report);
      if (world.rank() != 0) return;
      outcome.code = code;
      outcome.report = std::move(report);
    });
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.error = told(error);
  } catch (const CLI::ParseError& error) {
    outcome.code = ExitCode::usage;
    outcome.error = error.what();
  }
  outcome.log = captured.text();
  return outcome;
}

/// A folder with data, and runs of a tiny model in it.
class Runs {
 public:
  Runs() {
    write_small_rows(rows);
    write_noise(noise, 80);
  }
  /// Writes rows of ids without a pattern; a validation on a million of them takes minutes.
  static std::filesystem::path write_noise(const std::filesystem::path& file, int num_ids) {
    TokenFileNotes notes;
    notes.vocab_size = 61;
    const auto writer = write_packed_rows(file, 9, notes);
    std::mt19937 random(7);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < num_ids; ++i) ids.push_back(static_cast<std::int32_t>(random() % 61));
    writer->add(ids);
    writer->finish();
    return file;
  }

  FinetuneOutcome run(const std::string& name, int ranks, const Words& more = {}) {
    auto all = words(
        "--num-layers 1 --num-heads 2 --embed-size 8 --seq-len 8 --vocab-size 61 --total-batch-size 6 --device cpu "
        "--quiet --no-tensorboard --lr 1e-2 --lr-schedule constant --batch-size " +
        std::to_string(6 / ranks) + " --train-data " + rows.string() + " --out-dir " + dir.path().string() +
        " --run-name");
    all.push_back(name);
    all.insert(all.end(), more.begin(), more.end());
    return finetune(dir.path(), ranks, all, save_minutes);
  }
  /// The same with the options as one text; on one rank unless told otherwise.
  FinetuneOutcome train(const std::string& name, const std::string& options, int ranks = 1) {
    return run(name, ranks, words(options));
  }
  /// Resumes the run from its latest checkpoint, unless told otherwise, with no other options than those of the text.
  FinetuneOutcome resume(const std::string& name, const std::string& options, int ranks = 1) {
    auto all = words("--device cpu --no-tensorboard --restart latest --out-dir " + dir.path().string() + " --run-name");
    all.push_back(name);
    const auto more = words(options);
    all.insert(all.end(), more.begin(), more.end());
    return finetune(dir.path(), ranks, all, save_minutes);
  }
  std::filesystem::path folder(const std::string& name) const { return dir / name; }
  /// Names in the folder of the run's checkpoints; links with their targets.
  std::set<std::string> checkpoints(const std::string& name) const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder(name) / "checkpoints")) {
      auto text = entry.path().filename().string();
      if (entry.is_symlink()) text += " -> " + std::filesystem::read_symlink(entry.path()).string();
      found.insert(text);
    }
    return found;
  }
  RunState state(const std::string& name, const std::string& checkpoint = "latest") const {
    return read_run_manifest(folder(name) / "checkpoints" / checkpoint).state;
  }

  /// Lines of the run's metrics.jsonl.
  std::vector<nlohmann::json> records(const std::string& name) const {
    std::vector<nlohmann::json> found;
    std::ifstream lines(folder(name) / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) found.push_back(nlohmann::json::parse(line));
    return found;
  }
  /// Losses of the steps 1, 2, 3, ..., each of which must be there once.
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> found;
    for (const auto& record : records(name)) {
      if (!record.contains("loss")) continue;
      found.push_back(record["loss"].is_number() ? record["loss"].get<double>() : std::nan(""));
      CHECK(record["step"] == found.size());
    }
    return found;
  }
  /// Losses of the validations on the set of that name, by step.
  std::map<std::int64_t, double> validated(const std::string& name, const std::string& set = "") const {
    std::map<std::int64_t, double> found;
    for (const auto& record : records(name)) {
      if (record.contains("val_loss") && record.value("val_set", "") == set) found[record["step"]] = record["val_loss"];
    }
    return found;
  }
  /// The loss of a checkpoint, by a job that only evaluates.
  double evaluate(const std::filesystem::path& checkpoint, const std::filesystem::path& data, int ranks = 1) {
    return run("evaluated", ranks, {"--max-epochs", "-1", "--val-data", data, "--restart-checkpoint-file", checkpoint})
        .report.at("val_loss");
  }
  /// True if `fsdp-ckpt-convert --verify A B --exclude 'run*'` finds no difference.
  static bool same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
    ConvertOptions options;
    options.paths = {a, b};
    options.verify = options.job.json = true;
    options.input.exclude = {"run*"};
    nlohmann::json report;
    return run_convert_job(*make_single_group(), options, Logger(0, LogLevel::error), report) == ExitCode::ok;
  }

  TempDir dir;
  double save_minutes = 30;  ///< default of --save-interval-minutes
  const std::filesystem::path rows = dir / "rows.h5", noise = dir / "noise.h5";
};

/// Sends the process a signal once the file has this many lines with the word in them; jobs in the process take the
/// signal as their own.
class SignalAfter {
 public:
  SignalAfter(std::filesystem::path file, int lines, std::string word = "", int signal = SIGTERM)
      : watcher_([this, file = std::move(file), lines, word = std::move(word), signal] {
          while (!done_) {
            std::ifstream in(file);
            std::string line;
            int count = 0;
            while (std::getline(in, line)) count += line.find(word) != std::string::npos;
            if (count >= lines) {
              ::kill(::getpid(), signal);  // raise() sends to this thread
              return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }) {}
  ~SignalAfter() {
    done_ = true;
    watcher_.join();
  }
  SignalAfter(const SignalAfter&) = delete;
  SignalAfter& operator=(const SignalAfter&) = delete;

 private:
  std::atomic<bool> done_ = false;
  std::thread watcher_;
};

}  // namespace fsdp::test
