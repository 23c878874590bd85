#pragma once
// Log lines and a status line on stderr; stdout is for results.
#include <span>
#include <string>
#include <string_view>

#include "lib/base/types/advice.hpp"

namespace fsdp {

/// The program's sentence for an advice, with what joins it to the line before it.
using AdviceWords = std::string (*)(const Advice&);

enum class LogLevel { error = 0, warning = 1, info = 2, debug = 3 };

/// Writes each line to stderr with one write(2), so that lines of different ranks do not mix. Rank 0 logs up to the
/// given level; other ranks log at most warnings and errors, with the prefix "[rank r] ".
class Logger {
 public:
  /// \param rank   this process's rank in the job, 0 when alone
  /// \param words  for advices; null: lines go without
  Logger(int rank, LogLevel level, AdviceWords words = nullptr)
      : rank_(rank), level_(rank == 0 ? level : min_level(level)), words_(words) {}

  void info(std::string_view line, const Advice& advice = {}) const { write(LogLevel::info, line, advice); }
  void warning(std::string_view line, const Advice& advice = {}) const { write(LogLevel::warning, line, advice); }
  /// Warns of what all ranks know alike, on rank 0 alone.
  void warnings_of_all(std::span<const std::string> lines) const;
  void error(std::string_view line) const { write(LogLevel::error, line, {}); }
  void debug(std::string_view line) const { write(LogLevel::debug, line, {}); }
  bool enabled(LogLevel level) const { return level <= level_; }
  int rank() const { return rank_; }

 private:
  static LogLevel min_level(LogLevel level) { return level < LogLevel::warning ? level : LogLevel::warning; }
  void write(LogLevel level, std::string_view line, const Advice& advice) const;

  int rank_;
  LogLevel level_;
  AdviceWords words_;
};

/// A line on stderr that progress displays rewrite on a terminal, and lines that stay.
class StatusLine {
 public:
  /// \param log  must outlive this object
  explicit StatusLine(const Logger& log);
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  bool on_terminal() const { return terminal_; }
  /// Replaces the open line. Does nothing when stderr is not a terminal.
  void show(const std::string& text);
  /// Writes a permanent line to the log.
  void keep(const std::string& text);
  /// Removes the open line.
  void clear();

 private:
  const Logger& log_;
  bool terminal_;
  std::string open_;  ///< text of the open line
};

}  // namespace fsdp
