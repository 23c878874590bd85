// fsdp-download: fetches a model or data set from the Hugging Face hub into the local cache, resumable and verified.
// The command `tokens` turns texts into token files (fsdp_download_tokens.cpp).
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "apps/common/app_main.hpp"
#include "apps/common/no_ranks.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/download/fsdp_download_tasks.hpp"
#include "apps/download/fsdp_download_tokens.hpp"
#include "lib/base/process/signal_thread.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/hub/download.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_client.hpp"

namespace fsdp {
namespace {

struct Arguments {
  std::string repo;
  std::optional<RepoType> type;  ///< none: the type that the repository is known to have, else a model
  std::string cache_dir;
  std::string local_dir;
  std::vector<std::string> tasks, include_paths;
  bool all_formats = false;
  bool verify = false;
  bool dry_run = false;
  double retry_delay_seconds = 1;
  double takeover_after_seconds = 90;
  DownloadOptions download;
  JobOptions job;
};

constexpr std::array kRepoTypes{NamedValue<RepoType>{"model", RepoType::model},
                                NamedValue<RepoType>{"dataset", RepoType::dataset}};

void add_options(OptionTable& t, Arguments& arguments) {
  auto& download = arguments.download;
  const auto patterns = [](CLI::Option* option) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->expected(1)->allow_extra_args(false);
  };
  t.add_option("repo", arguments.repo, "OWNER/NAME on the hub");
  add_task_names(
      t, arguments.tasks, arguments.include_paths,
      "in place of a repository: the data sets of these benchmarks of fsdp-eval, of which only the splits that they "
      "read are fetched; sizes are printed first");
  t.add_choice("type", kRepoTypes, arguments.type,
               "type of the repository: model or dataset; default: model, unless the repository is known");
  t.add("revision", download.revision, "branch, tag, refs/pr/N or commit");
  patterns(t.add("include", download.selection.include,
                 "download only files that match the pattern; * also matches /; may be repeated"));
  patterns(t.add("exclude", download.selection.exclude, "omit files that match the pattern; may be repeated"));
  t.add("max-files", download.selection.max_files, "the first N of the selected files by path; 0: all",
        {.default_text = ""});
  t.add("all-formats", arguments.all_formats,
        "also download weights in other formats from a repository that has safetensors");
  t.add("cache-dir", arguments.cache_dir, "directory of the cache; default: HF_HUB_CACHE, else HF_HOME/hub",
        {.path = PathKind::folder});
  t.add("local-dir", arguments.local_dir, "directory for plain files, in place of the cache",
        {.path = PathKind::folder});
  t.add("verify", arguments.verify, "only compare the files that are there with their hashes; needs no network");
  t.add("dry-run", arguments.dry_run, "only list what would be downloaded");
  t.add("jobs", download.jobs, "connections at once, for several files or for parts of one",
        {.range = {.from = 1, .to = 64}});
  t.add("part-size", download.part_bytes, "bytes of a large file that one request asks for",
        {.default_text = "64MiB", .is_size = true});
  t.add("retries", download.retries.attempts, "attempts in a row without progress before giving up",
        {.range = {.from = 1, .to = 1000}});
  t.add("retry-delay", arguments.retry_delay_seconds,
        "seconds before the second attempt; doubles with each further one, up to 60",
        {.range = {.from = 0, .to = 86400}, .unit = "seconds"});
  t.add("takeover-after", arguments.takeover_after_seconds,
        "seconds without a sign of life after which the download of another process is taken over",
        {.range = {.from = 0.2, .to = 86400}, .unit = "seconds"});
  t.add("json", arguments.job.json, "print the result as one JSON object on stdout");
  t.add("quiet", arguments.job.quiet, "print warnings and errors only");
  t.add_config("file to read options from");
  t.set_version_flag("--version", "fsdp-download " FSDP_VERSION);
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(seconds * 1000)));
}

void complete(Arguments& arguments, HubSettings& settings) {
  if (!arguments.cache_dir.empty() && !arguments.local_dir.empty()) {
    throw UsageError("--cache-dir and --local-dir: give one of them");
  }
  auto& download = arguments.download;
  if (arguments.repo.empty() == arguments.tasks.empty())
    throw UsageError("name a repository, OWNER/NAME, or benchmarks with --tasks");
  if (!arguments.tasks.empty() &&
      (arguments.type || !arguments.local_dir.empty() || !download.selection.include.empty()))
    throw UsageError("--tasks chooses files itself: it goes without --type, --include and --local-dir");
  const auto preset = arguments.tasks.empty() ? preset_of(arguments.repo) : Preset();
  const auto type = arguments.type.value_or(preset.type);
  if (arguments.tasks.empty()) download.repo = RepoId::parse(type, arguments.repo);
  download.selection.prefer_safetensors = !arguments.all_formats;
  if (download.selection.include.empty() && !arguments.all_formats && type == preset.type) {
    download.selection.include = preset.include;
  }
  if (!arguments.local_dir.empty()) download.local_dir = arguments.local_dir;
  if (!arguments.cache_dir.empty()) settings.cache_dir = arguments.cache_dir;
  if (download.part_bytes < 4096) throw UsageError("--part-size must be at least 4096 bytes");
  download.piece_bytes = std::min(download.piece_bytes, download.part_bytes);
  download.retries.first_delay = milliseconds(arguments.retry_delay_seconds);
  download.takeover_after = milliseconds(arguments.takeover_after_seconds);
}

void print_line(const std::string& text) {
  std::cout << text << std::endl;
  if (!std::cout) throw IoError("stdout: cannot write the result");
}

nlohmann::json common_report(const Arguments& arguments, const std::string& commit,
                             const std::filesystem::path& snapshot) {
  const auto& download = arguments.download;
  return {{"repo", download.repo.name},
          {"type", download.repo.type_word()},
          {"revision", download.revision},
          {"commit", commit},
          {"snapshot", snapshot.string()}};
}

nlohmann::json download_json(const Arguments& arguments, const DownloadReport& result) {
  auto report = common_report(arguments, result.commit, result.snapshot);
  auto& files = report["files"] = nlohmann::json::array();
  for (const auto& file : result.files) {
    const bool missing = std::find(result.missing.begin(), result.missing.end(), file.path) != result.missing.end();
    files.push_back({{"path", file.path}, {"size", file.size_bytes}, {"hash", file.hash()}, {"was_there", !missing}});
  }
  report["ignored"] = nlohmann::json::object();
  if (!result.ignored.empty()) report["ignored"][report["repo"].get<std::string>()] = result.ignored;
  report["bytes"] = result.total_bytes;
  report["bytes_to_fetch"] = result.missing_bytes;
  report["bytes_received"] = result.received_bytes;
  report["seconds"] = result.seconds;
  return report;
}

ExitCode verify(const Arguments& arguments, const HubSettings& settings, const Logger& log,
                const std::function<bool()>& stop, nlohmann::json& report) {
  const auto result = verify_snapshot(arguments.download, settings, stop);
  report = common_report(arguments, result.commit, result.snapshot);
  report["verified_against"] = result.source;
  report["files"] = result.files;
  report["bytes"] = result.bytes;
  report["seconds"] = result.seconds;
  auto& problems = report["problems"] = nlohmann::json::array();
  for (const auto& problem : result.problems) {
    problems.push_back({{"path", problem.path}, {"what", problem.what}});
    log.error(problem.path + " " + problem.what);
  }
  if (!result.problems.empty()) {
    log.warning(fmt::format("{} of {} wrong; run the same command without --verify to fetch them again",
                            result.problems.size(),
                            format_count_of(static_cast<std::int64_t>(result.files), "file") +
                                (result.problems.size() == 1 ? " is" : " are")));
    return ExitCode::answer_no;
  }
  log.info(fmt::format("{}, {}, all as they should be (by {})",
                       format_count_of(static_cast<std::int64_t>(result.files), "file"),
                       format_bytes(static_cast<double>(result.bytes)), result.source));
  if (!arguments.job.json) print_line(result.snapshot.string());
  return ExitCode::ok;
}

ExitCode plan(const Arguments& arguments, const HubSettings& settings, const Logger& log,
              const std::function<bool()>& stop, nlohmann::json& report) {
  const auto result = plan_download(arguments.download, settings, log, stop);
  report = download_json(arguments, result);
  if (arguments.job.json) return ExitCode::ok;
  for (const auto& file : report["files"]) {
    print_line(fmt::format("{:>9}  {}  {}", format_bytes(file["size"].get<double>()),
                           file["was_there"].get<bool>() ? "there  " : "missing", file["path"].get<std::string>()));
  }
  log.info(fmt::format("{}, {}; {} to fetch into {}", format_count_of(std::ssize(result.files), "file"),
                       format_bytes(static_cast<double>(result.total_bytes)),
                       format_bytes(static_cast<double>(result.missing_bytes)), result.snapshot.string()));
  return ExitCode::ok;
}

ExitCode download(const Arguments& arguments, const HubSettings& settings, const Logger& log,
                  const std::function<bool()>& stop, nlohmann::json& report) {
  const auto result = download_snapshot(arguments.download, settings, log, stop);
  report = download_json(arguments, result);
  if (settings.offline) {
    log.info(
        fmt::format("{} there (offline; --verify compares their hashes)",
                    format_count_of(std::ssize(result.files), "file") + (result.files.size() == 1 ? " is" : " are")));
    if (!arguments.job.json) print_line(result.snapshot.string());
    return ExitCode::ok;
  }
  report["ready"] = result.ready_mark.string();
  log.info(fmt::format("{}, {} verified, {} received in {}", format_count_of(std::ssize(result.files), "file"),
                       format_bytes(static_cast<double>(result.total_bytes)),
                       format_bytes(static_cast<double>(result.received_bytes)), format_duration(result.seconds)));
  if (!arguments.job.json) print_line(result.snapshot.string());
  return ExitCode::ok;
}

/// Disables core dumps of this process, regardless of ulimit and core_pattern, and debuggers of the same user. root can
/// still read its memory.
void forbid_core_dumps() {
  // A core_pattern that is a pipe ignores the limit, so the process is also marked as not dumpable.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

int fetch_main(int argc, char** argv) {
  OptionTable app{
      "Downloads a model or data set from the Hugging Face hub into its cache, where transformers finds it.\n"
      "Every file is checked against its hash; a later call resumes a download that was stopped or killed.\n"
      "Prints the folder of the snapshot. Exit codes: 0 done, 1 failed, 2 usage, 3 --verify found a wrong file,\n"
      "4 not there (no such repository or file; offline), 85 stopped by a signal: run the same command to resume.\n"
      "To convert text data to token files: fsdp-download tokens --help. Data of benchmarks: --tasks hellaswag mmlu.",
      "fsdp-download"};
  Arguments arguments;
  add_options(app, arguments);
  if (const int code = parse(app, argc, argv); code >= 0) return code;
  forbid_core_dumps();  // HF_TOKEN is in the environment and in requests
  // With SIGPIPE ignored, a closed connection or pipe is reported as an error instead of ending the process.
  std::signal(SIGPIPE, SIG_IGN);
  return run_job(
      arguments.job, [](const MpiOptions&) { return std::make_unique<NoRanks>(); },
      [&](ProcessGroup&, const Logger& log, nlohmann::json& report) {
        auto settings = hub_settings(process_environment());
        complete(arguments, settings);
        const StopSignal signal;
        const auto stop = [&] { return signal.received() != 0; };
        arguments.download.retries.tell = [&](const std::string& text) {
          log.warning(text + "; --retries 1 gives up at once");
        };
        try {
          if (!arguments.tasks.empty()) {
            const TasksDownload wanted{arguments.tasks, arguments.include_paths, arguments.dry_run, arguments.verify};
            return download_tasks(wanted, arguments.download, settings, log, stop, report);
          }
          const auto step = arguments.verify ? verify : arguments.dry_run ? plan : download;
          return step(arguments, settings, log, stop, report);
        } catch (const DownloadStopped&) {
          arguments.job.json = false;
          log.warning(fmt::format("stopped by signal {}; what arrived is kept: run the same command to go on",
                                  signal.received()));
          return ExitCode::stopped_early;
        }
      });
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const fsdp::SignalThread signals;
  // No repository has this name: names of repositories begin with their owner.
  if (argc > 1 && std::string_view(argv[1]) == "tokens") return fsdp::tokens_main(argc - 1, argv + 1);
  return fsdp::fetch_main(argc, argv);
}
