#pragma once
// The errors a user can meet. A bug in this program is a std::logic_error instead.
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

/// Base of everything a program reports to its user; what() is one readable sentence.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// An option, or several together, that cannot work. The message names the option and what would work.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& what) : Error(ExitCode::usage, what) {}
};

/// A file whose content is not what its format promises.
class FormatError : public Error {
 public:
  explicit FormatError(const std::string& what) : Error(ExitCode::bad_input, what) {}
  /// "FILE: at byte OFFSET: WHAT"
  FormatError(const std::string& file, std::uint64_t offset_bytes, const std::string& what)
      : Error(ExitCode::bad_input, file + ": at byte " + std::to_string(offset_bytes) + ": " + what) {}
};

/// The operating system refused: open, read, write, rename, no space. The message names path and reason.
class IoError : public Error {
 public:
  explicit IoError(const std::string& what) : Error(ExitCode::failed, what) {}

 protected:
  IoError(ExitCode code, const std::string& what) : Error(code, what) {}
};

/// An input that is not there: for the user the same as one that is wrong.
class MissingInput : public IoError {
 public:
  explicit MissingInput(const std::string& what) : IoError(ExitCode::bad_input, what) {}
};

/// Another rank, a communicator or a device failed.
class RuntimeFailure : public Error {
 public:
  explicit RuntimeFailure(const std::string& what) : Error(ExitCode::failed, what) {}
};

/// Work that was asked to stop, and has left nothing behind.
class Stopped : public Error {
 public:
  explicit Stopped(const std::string& what = "stopped; nothing was written under the output's name")
      : Error(ExitCode::failed, what) {}
};

}  // namespace fsdp
