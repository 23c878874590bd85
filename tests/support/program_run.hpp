#pragma once
// Runs a program's main() inside the test: a process of its own would spend a third of a second on its start.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// The programs' main(), which tests/unit/CMakeLists.txt renames.
extern "C" {
int fsdp_bf16check_main(int argc, char** argv);
int fsdp_ckpt_convert_main(int argc, char** argv);
int fsdp_download_main(int argc, char** argv);
int fsdp_eval_main(int argc, char** argv);
int fsdp_finetune_main(int argc, char** argv);
int fsdp_memprobe_main(int argc, char** argv);
}

namespace fsdp::test {

/// A program and its arguments, for example {"fsdp-finetune", "--lr", "1"}.
using CommandLine = std::vector<std::string>;

/// Returns the words of `a`, then those of `b`.
inline CommandLine operator+(CommandLine a, const CommandLine& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct ProgramRun {
  int code = -1;
  std::string out, err;

  /// Returns the lines of `err` that are error messages.
  std::vector<std::string> errors() const {
    std::vector<std::string> found;
    std::istringstream lines(err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("error:") != std::string::npos) found.push_back(line);
    }
    return found;
  }
};

/// While an object lives, what is written to a file descriptor goes into memory.
class CapturedOutput {
 public:
  explicit CapturedOutput(int descriptor)
      : descriptor_(descriptor), original_(::dup(descriptor)), file_(::memfd_create("output", MFD_CLOEXEC)) {
    if (original_ < 0 || file_ < 0 || ::dup2(file_, descriptor_) < 0) throw std::runtime_error("no output is captured");
  }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  ~CapturedOutput() {
    ::dup2(original_, descriptor_);
    ::close(original_);
    ::close(file_);
  }
  std::string text() const {
    std::string text(static_cast<std::size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    if (::pread(file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("captured output cannot be read");
    return text;
  }

 private:
  int descriptor_, original_, file_;
};

/// Runs a program to its end. The state of the process stays: environment, folder, memory.
inline ProgramRun run_program(CommandLine line) {
  static const std::map<std::string, int (*)(int, char**)> programs{
      {"fsdp-bf16check", fsdp_bf16check_main}, {"fsdp-ckpt-convert", fsdp_ckpt_convert_main},
      {"fsdp-download", fsdp_download_main},   {"fsdp-eval", fsdp_eval_main},
      {"fsdp-finetune", fsdp_finetune_main},   {"fsdp-memprobe", fsdp_memprobe_main}};
  std::vector<char*> words;
  for (auto& word : line) words.push_back(word.data());
  words.push_back(nullptr);
  std::cout << std::flush;
  const CapturedOutput out(STDOUT_FILENO), err(STDERR_FILENO);
  ProgramRun run;
  run.code = programs.at(line.front())(static_cast<int>(line.size()), words.data());
  std::cout << std::flush;
  run.out = out.text();
  run.err = err.text();
  return run;
}

/// Returns the array `options` of what the program prints with --describe-options.
inline nlohmann::json described_options(const CommandLine& program) {
  const auto run = run_program(program + CommandLine{"--describe-options"});
  REQUIRE(run.code == 0);
  return nlohmann::json::parse(run.out)["options"];
}

/// Returns what `line` prints with --print-config: the given options as a config file, the others as comments.
inline std::string config_text(const CommandLine& line) {
  const auto run = run_program(line + CommandLine{"--print-config"});
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.err.empty());
  return run.out;
}

/// Returns the options in a text of config_text(), value by name.
/// \param default_also  those in comments, `#name=value`, too
inline std::map<std::string, std::string> options_in(const std::string& config, bool default_also) {
  std::map<std::string, std::string> found;
  std::istringstream lines(config);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.starts_with("#") ? 1 : 0, end = line.find('=');
    if (end == std::string::npos || line.find(' ') < end || (begin == 1 && !default_also)) continue;
    found[line.substr(begin, end - begin)] = line.substr(end + 1);
  }
  return found;
}

/// Expects the exit code and one error message, which names all of `facts`.
inline void expect_refused(const ProgramRun& run, int code, const std::vector<std::string>& facts) {
  INFO(run.err);
  CHECK(run.code == code);
  REQUIRE(run.errors().size() == 1);
  for (const auto& fact : facts) {
    INFO(fact);
    CHECK(run.errors()[0].find(fact) != std::string::npos);
  }
}

}  // namespace fsdp::test
