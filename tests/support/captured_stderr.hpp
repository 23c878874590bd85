#pragma once
// Standard error as text, for tests of what is logged.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "lib/base/files/file.hpp"

namespace fsdp::test {

/// Redirects standard error to a file during the life of the object.
class CapturedStderr {
 public:
  explicit CapturedStderr(std::filesystem::path file) : file_(std::move(file)), saved_(::dup(2)) {
    const int fd = ::open(file_.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ::dup2(fd, 2);
    ::close(fd);
  }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;
  ~CapturedStderr() { restore(); }
  std::string text() {
    restore();
    return read_text_file(file_);
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    ::dup2(saved_, 2);
    ::close(saved_);
    saved_ = -1;
  }
  std::filesystem::path file_;
  int saved_;
};

}  // namespace fsdp::test
