#pragma once
// The errors that programs report to users. Bugs are reported as std::logic_error instead.
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fsdp {

/// Exit codes shared by all programs (docs/exit-codes.md).
enum class ExitCode : int {
  ok = 0,
  failed = 1,         ///< an I/O, MPI or device failure
  usage = 2,          ///< an option or a combination of options is wrong
  answer_no = 3,      ///< the program ran and the answer is no
  bad_input = 4,      ///< a file does not hold what it should
  stopped_early = 85  ///< stopped by a signal or a time limit with a good checkpoint: submit again
};

/// Base class of the errors that a program reports to its user; what() is one readable sentence.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// An invalid option or combination of options. The message names the option and valid choices.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& what) : Error(ExitCode::usage, what) {}
};

/// A file whose content violates its format.
class FormatError : public Error {
 public:
  explicit FormatError(const std::string& what) : Error(ExitCode::bad_input, what) {}
  /// "FILE: at byte OFFSET: WHAT"
  FormatError(const std::string& file, std::uint64_t offset_bytes, const std::string& what)
      : Error(ExitCode::bad_input, file + ": at byte " + std::to_string(offset_bytes) + ": " + what) {}
};

/// A failure of the operating system: open, read, write, rename, no space. The message names path and reason.
class IoError : public Error {
 public:
  explicit IoError(const std::string& what) : Error(ExitCode::failed, what) {}

 protected:
  IoError(ExitCode code, const std::string& what) : Error(code, what) {}
};

/// A missing input. Its exit code is that of an invalid input.
class MissingInput : public IoError {
 public:
  explicit MissingInput(const std::string& what) : IoError(ExitCode::bad_input, what) {}
};

/// Another rank, a communicator or a device failed.
class RuntimeFailure : public Error {
 public:
  explicit RuntimeFailure(const std::string& what) : Error(ExitCode::failed, what) {}
};

/// Thrown when work was stopped on request and left no output behind.
class Stopped : public Error {
 public:
  explicit Stopped(const std::string& what = "stopped; nothing was written under the output's name")
      : Error(ExitCode::failed, what) {}
};

}  // namespace fsdp
