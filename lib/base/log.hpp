#pragma once
// Log lines on stderr. stdout belongs to results.
#include <string_view>

namespace fsdp {

enum class LogLevel { error = 0, warning = 1, info = 2, debug = 3 };

/// Writes whole lines to stderr with one write(2) each, so that lines of different ranks never mix.
/// Only the ranks that should speak get a logger that does: rank 0 logs info, the others warnings and errors
/// with a "[rank r] " prefix.
class Logger {
 public:
  /// \param rank  this process's rank in the job, 0 when alone
  Logger(int rank, LogLevel level) : rank_(rank), level_(rank == 0 ? level : min_level(level)) {}

  void info(std::string_view line) const { write(LogLevel::info, line); }
  void warning(std::string_view line) const { write(LogLevel::warning, line); }
  void error(std::string_view line) const { write(LogLevel::error, line); }
  void debug(std::string_view line) const { write(LogLevel::debug, line); }
  bool enabled(LogLevel level) const { return level <= level_; }
  int rank() const { return rank_; }

 private:
  static LogLevel min_level(LogLevel level) { return level < LogLevel::warning ? level : LogLevel::warning; }
  void write(LogLevel level, std::string_view line) const;

  int rank_;
  LogLevel level_;
};

}  // namespace fsdp
