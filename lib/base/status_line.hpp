#pragma once
// One line on stderr that rewrites itself on a terminal and lines that stay: what progress displays are made of.
#include <string>

#include "lib/base/log.hpp"

namespace fsdp {

class StatusLine {
 public:
  /// \param log  must outlive this object
  explicit StatusLine(const Logger& log);
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  bool on_terminal() const { return terminal_; }
  /// Replaces the open line; nothing where stderr is no terminal.
  void show(const std::string& text);
  /// A line that stays, by way of the log.
  void keep(const std::string& text);
  /// Removes the open line.
  void clear();

 private:
  const Logger& log_;
  bool terminal_;
  std::string open_;  ///< what the rewriting line shows
};

}  // namespace fsdp
