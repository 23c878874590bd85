#pragma once
// The errors that programs report to users. Bugs are reported as std::logic_error instead.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "lib/base/types/advice.hpp"

namespace fsdp {

/// Exit codes shared by all programs (docs/exit-codes.md).
enum class ExitCode : int {
  ok = 0,
  failed = 1,         ///< an I/O, MPI or device failure
  usage = 2,          ///< an option is wrong, or what was asked for does not go together
  answer_no = 3,      ///< the program ran and the answer is no
  bad_input = 4,      ///< a file does not hold what it should
  stopped_early = 85  ///< stopped by a signal or a time limit with a good checkpoint: submit again
};

/// Base class of the errors that a program reports to its user; what() is one readable sentence without words of a
/// program, which adds its own for advice().
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what, Advice advice = {})
      : std::runtime_error(what), code_(code), advice_(std::move(advice)) {}
  ExitCode code() const noexcept { return code_; }
  const Advice& advice() const noexcept { return advice_; }

 private:
  ExitCode code_;
  Advice advice_;
};

/// An invalid option or combination of options. The message names the option and valid choices.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& what, Advice advice = {}) : Error(ExitCode::usage, what, std::move(advice)) {}
};

/// A request that does not go with what is there, such as a format that cannot hold a tensor. The message names the
/// thing, not an option.
class RequestError : public Error {
 public:
  explicit RequestError(const std::string& what, Advice advice = {})
      : Error(ExitCode::usage, what, std::move(advice)) {}
};

/// A file whose content violates its format.
class FormatError : public Error {
 public:
  explicit FormatError(const std::string& what, Advice advice = {})
      : Error(ExitCode::bad_input, what, std::move(advice)) {}
  /// "FILE: at byte OFFSET: WHAT"
  FormatError(const std::string& file, std::uint64_t offset_bytes, const std::string& what, Advice advice = {})
      : FormatError(file + ": at byte " + std::to_string(offset_bytes) + ": " + what, std::move(advice)) {}
};

/// A failure of the operating system: open, read, write, rename, no space. The message names path and reason.
class IoError : public Error {
 public:
  explicit IoError(const std::string& what, Advice advice = {}) : Error(ExitCode::failed, what, std::move(advice)) {}

 protected:
  IoError(ExitCode code, const std::string& what, Advice advice) : Error(code, what, std::move(advice)) {}
};

/// A missing input. Its exit code is that of an invalid input.
class MissingInput : public IoError {
 public:
  explicit MissingInput(const std::string& what, Advice advice = {})
      : IoError(ExitCode::bad_input, what, std::move(advice)) {}
};

/// Another rank, a communicator or a device failed.
class RuntimeFailure : public Error {
 public:
  explicit RuntimeFailure(const std::string& what, Advice advice = {})
      : Error(ExitCode::failed, what, std::move(advice)) {}
};

/// Thrown when work was stopped on request and left no output.
class Stopped : public Error {
 public:
  explicit Stopped(const std::string& what = "stopped; nothing was written under the output's name")
      : Error(ExitCode::failed, what) {}
};

}  // namespace fsdp
