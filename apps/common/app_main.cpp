#include "apps/common/app_main.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apps/common/config_files/config_file.hpp"
#include "apps/common/remedies.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/variables.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/nearest_name.hpp"
#include "lib/base/text/text_format.hpp"

namespace fsdp {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::string plain(const std::string& name) {
  auto text = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  text = text.substr(0, text.find('='));
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

/// Warns of variables that begin as the project's own do and that nothing reads, once per job.
void tell_unknown_variables() {
  if (!speaks_for_the_job()) return;
  for (const auto& unknown : unknown_variables()) {
    NearestName nearest(unknown);
    for (const auto& variable : variables()) {
      if (variable.reader != VariableReader::tests) nearest.offer(variable.name, variable.name);
    }
    std::cerr << fmt::format("warning: {}: these programs know no such variable{}\n", printable(unknown),
                             nearest.name().empty() ? "" : fmt::format("; did you mean {}?", nearest.name()));
  }
}

/// Returns "; did you mean NAME?" when the error is about an unknown option and another option's name is close; else
/// "".
std::string what_was_meant(const CLI::App& app, const CLI::ParseError& error) {
  std::string unknown;
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const auto words = app.remaining();
    const auto option =
        std::find_if(words.begin(), words.end(), [](const auto& word) { return word.starts_with("--"); });
    if (option != words.end()) unknown = *option;
  } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ConfigError)) {
    const std::string text = error.what();  // "INI was not able to parse NAME"
    unknown = text.substr(text.rfind(' ') + 1);
  }
  const auto nearest = unknown.empty() ? std::string() : nearest_option(app, unknown);
  return nearest.empty() ? "" : fmt::format("; did you mean {}{}?", unknown.starts_with("--") ? "--" : "", nearest);
}

/// Returns the file of --config; "" when it was not given.
std::string config_file_of(const CLI::App& app) {
  const auto* option = app.get_option_no_throw("--config");
  return option == nullptr || option->count() == 0 ? "" : option->results().back();
}

/// Returns " (here NAME=VALUE)", or the advice about NAME, when the error is a line of another trainer's YAML; else "".
std::string line_for_yaml(const OptionTable& app, const CLI::ParseError& error) try {
  if (std::string_view(error.what()).find(" is YAML: ") == std::string_view::npos) return "";
  std::ifstream input(config_file_of(app));
  try {
    (void)ConfigFile().from_config(input);
    return "";
  } catch (const YamlLine& yaml) {  // CLI11 threw it on as its base
    std::string text;
    for (const auto& word : app.rewritten({"--" + yaml.key + (yaml.value.empty() ? "" : "=" + yaml.value)})) {
      const bool is_value = !word.starts_with("--");
      if (!is_value && app.get_option_no_throw(word.substr(0, word.find('='))) == nullptr) return "";
      text += is_value ? "=" + word : (text.empty() ? " (here " : " ") + word.substr(2);
    }
    return text.empty() ? "" : text + ")";
  }
} catch (const UsageError& advice) {
  return "; " + told(advice);
}

/// Returns the long names of the option that the error text names, because a config file may use any of them. Returns
/// nothing when the option is also on the command line.
std::vector<std::string> config_names_in(const CLI::App& app, int argc, char** argv, const std::string& text) {
  const auto begin = text.find("--");
  if (begin == std::string::npos) return {};
  const auto end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_", begin);
  const auto* option = app.get_option_no_throw(text.substr(begin, end - begin));
  if (option == nullptr) return {};
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    if (word.starts_with("--") && app.get_option_no_throw(word.substr(0, word.find('='))) == option) return {};
  }
  return option->get_lnames();
}

/// Returns the text of an error message. When the error is in a config file, the text also names the file and the line.
/// CLI11's message for an option without a value, "--plan: 1 required TEXT missing", becomes "--plan needs a value".
std::string words_of(const CLI::App& app, int argc, char** argv, std::string text) {
  const auto missing = text.find(": 1 required ");
  if (missing != std::string::npos && text.ends_with(" missing")) text = text.substr(0, missing) + " needs a value";
  // CLI11 turns the order of the words round.
  if (text.starts_with("The following argument"))
    text = text.substr(0, text.find(": ") + 2) + CLI::detail::join(app.remaining(), " ");
  constexpr std::string_view kOfReader = "--config: ", kUnknown = "INI was not able to parse ";
  constexpr std::string_view kUnreadable = " was not readable (missing?)",
                             kNotThere = ": This option is not allowed in";
  if (text.ends_with(kUnreadable))
    return fmt::format("--config {}: is no file that can be read", text.substr(0, text.size() - kUnreadable.size()));
  const auto file = config_file_of(app);
  if (file.empty()) return text;
  if (text.starts_with(kOfReader)) return fmt::format("--config {}: {}", file, text.substr(kOfReader.size()));
  auto names = config_names_in(app, argc, argv, text);
  if (text.starts_with(kUnknown)) {
    names = {text.substr(kUnknown.size())};
    text = fmt::format("'{}' is no option", names.front());
  }
  if (const auto end = text.find(kNotThere); end != std::string::npos) names = {text.substr(0, end)};
  std::ifstream input(file);
  const auto reader = std::dynamic_pointer_cast<const ConfigFile>(app.get_config_formatter());
  const auto line = names.empty() || reader == nullptr ? 0 : reader->line_of_option(input, names);
  return line == 0 ? text : fmt::format("--config {}: line {}: {}", file, line, text);
}

/// Refuses a --config that is a pipe, because CLI11 would open the pipe and wait for a writer.
void refuse_piped_config(int argc, char** argv) {
  constexpr std::string_view option = "--config";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    std::string_view file;
    if (word == option && i + 1 < argc) file = argv[i + 1];
    if (word.starts_with("--config=")) file = word.substr(option.size() + 1);
    std::error_code error;
    if (!file.empty() && std::filesystem::is_fifo(file, error)) {
      throw CLI::FileError(std::string(option) + " " + std::string(file) + ": is a pipe, a regular file is needed");
    }
  }
}

/// Prints an error, once per job. \return the exit code
int tell(const Error& error) {
  if (speaks_for_the_job()) std::cerr << "error: " << told(error) << "\n";
  return static_cast<int>(error.code());
}

/// Writes the job's exit code into the file of FSDP_EXIT_FILE, if that is set. Job scripts read it where a launcher
/// returns another code.
void write_exit_file(int code) {
  const auto file = variable_value("FSDP_EXIT_FILE");
  if (!file) return;
  std::ofstream out(*file);
  if (!(out << code << std::endl)) std::cerr << fmt::format("warning: FSDP_EXIT_FILE={}: cannot be written\n", *file);
}

/// True on the first rank, and on all ranks when the first rank cannot know that it is one of several.
bool speaks_before_ranks() {
  const auto several = several_started();
  return speaks_for_the_job() || (several && !several->first_rank_knows);
}

}  // namespace

std::string nearest_option(const CLI::App& app, const std::string& name) {
  const auto wanted = plain(name);
  NearestName nearest(wanted);
  nearest.allow_one();
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const auto& known : option->get_lnames()) {
      // A prefix of a name, such as --batch, or its last word, such as --field, counts as distance 1.
      const bool is_part = wanted.size() > 2 && (known.starts_with(wanted) || known.ends_with("-" + wanted));
      nearest.offer_at(is_part ? 1 : edit_distance(wanted, plain(known)), known);
    }
  }
  return nearest.name();
}

bool speaks_for_the_job() {
  const auto rank = launcher_rank();
  return rank.empty() || rank == "0";
}

void add_job_options(OptionTable& t, JobOptions& options) {
  const NumberRange seconds{.from = 0.001, .to = 1e9};
  t.add("init-timeout", options.init_timeout_seconds,
        "seconds to wait for all ranks at the start, and for NCCL to connect them",
        {.range = seconds, .unit = "seconds"});
  t.add("collective-timeout", options.collective_timeout_seconds,
        "seconds after which a stuck collective ends the job with the name of the rank that did not arrive",
        {.range = seconds, .unit = "seconds"});
  t.add("json", options.json, "print the result as one JSON object on stdout", {.at_restart = AtRestart::printing});
  t.add("quiet", options.quiet, "print warnings and errors only", {.at_restart = AtRestart::printing});
}

void print_on_stdout(const std::string& text) {
  const bool failed_before = !std::cout;  // errno of the earlier failure is lost
  std::cout << text << std::flush;
  if (std::cout) return;
  throw IoError(failed_before ? "stdout: cannot be written"
                              : fmt::format("stdout: cannot be written: {}", std::strerror(errno)));
}

void check_plot_file(const std::string& file) {
  if (file.empty() || file.ends_with(".svg")) return;
  throw UsageError(
      fmt::format("--plot {}: pictures are SVG: name a file that ends in .svg, which `rsvg-convert --zoom 2 FILE.svg "
                  "-o FILE.png` or a "
                  "browser turns into PNG",
                  file));
}

int run_alone(const std::function<void()>& body) {
  try {
    body();
    return static_cast<int>(ExitCode::ok);
  } catch (const Error& error) {
    return tell(error);
  }
}

int print_config(const CLI::App& app) {
  return run_alone([&] {
    if (speaks_for_the_job()) print_on_stdout(app.config_to_str(true, true));
  });
}

int parse(OptionTable& app, int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--describe-options")
    return run_alone([&] { print_on_stdout(app.describe()); });
  try {
    refuse_piped_config(argc, argv);
    auto words = app.rewritten({argv + std::min(argc, 1), argv + argc});
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
    check_variables();
    tell_unknown_variables();
    return -1;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return run_alone([&] {
        std::ostringstream text;
        if (error.get_name() == "CallForHelp")
          text << app.help_text();
        else if (error.get_name() == "CallForAllHelp")
          text << app.help();
        else
          app.exit(error, text, text);
        if (speaks_for_the_job()) print_on_stdout(text.str());
      });
    }
    if (speaks_for_the_job()) {
      std::cerr << "error: " << words_of(app, argc, argv, error.what()) << what_was_meant(app, error)
                << line_for_yaml(app, error) << "\n"
                << "See " << app.get_name() << " --help.\n";
    }
    return static_cast<int>(ExitCode::usage);
  } catch (const Error& error) {  // an option or a variable refused its value
    if (speaks_for_the_job()) std::cerr << "error: " << words_of(app, argc, argv, told(error)) << "\n";
    return static_cast<int>(error.code());
  }
}

void require_same_options(ProcessGroup& world, const CLI::App& app) {
  const auto text = app.config_to_str(true, false);
  // 52 bits of the text's hash fit a double exactly.
  const auto digest = static_cast<double>(std::hash<std::string>{}(text) >> 12);
  if (world.all_reduce(digest, Reduce::min) != world.all_reduce(digest, Reduce::max)) {
    throw UsageError(
        "the ranks were started with different options; start all with the same command line and --config file");
  }
}

int run_job(const JobOptions& options, const StartRanks& start_ranks, const JobBody& body,
            const JobListener& listener) {
  // A write beyond the file-size limit then fails with an error message, and the checkpoints before it are kept.
  std::signal(SIGXFSZ, SIG_IGN);
  const auto level = options.quiet ? LogLevel::warning : LogLevel::info;
  std::unique_ptr<RankEnvironment> ranks;
  std::unique_ptr<ProcessGroup> world;
  int code = static_cast<int>(ExitCode::ok);
  std::optional<std::string> failure;
  try {
    if (launched_by_mpi()) {
      ranks = start_ranks(
          MpiOptions{milliseconds(options.init_timeout_seconds), milliseconds(options.collective_timeout_seconds)});
      world = ranks->world();
    } else {
      world = make_single_group();
    }
    const Logger log(world->rank(), level, words_of_advice);
    nlohmann::json report;
    code = static_cast<int>(body(*world, log, report));
    if (world->rank() == 0) {
      print_on_stdout(options.json && !report.is_null() ? printable_json(report, 1) + "\n" : "");
      if (listener.ended) listener.ended(code, "", log);
      write_exit_file(code);
    }
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    failure = told(error);
  } catch (const std::bad_alloc&) {
    code = static_cast<int>(ExitCode::failed);
    failure = "out of memory";
  } catch (const std::exception& error) {
    code = static_cast<int>(ExitCode::failed);
    failure = error.what();
  }
  if (failure) {
    const int rank = world != nullptr ? world->rank() : (speaks_before_ranks() ? 0 : 1);
    const Logger log(rank, level, words_of_advice);
    if (rank == 0) log.error(*failure);
    // When all ranks met an error, rank 0 has reported it and the job ends. Otherwise this rank reports its error and
    // aborts the job.
    const bool alone = ranks != nullptr && !ranks->everyone_failed(kAlikePatience);
    if (alone && rank != 0) log.error(*failure);
    if (listener.ended && (rank == 0 || alone)) listener.ended(code, *failure, log);
    if (rank == 0 || alone) write_exit_file(code);
    if (alone) ranks->abort_job(code);
  }
  world.reset();
  if (ranks != nullptr) ranks->set_exit(code, kExitPatience + listener.longest);
  return code;
}

}  // namespace fsdp
