#include <ATen/native/verbose_wrapper.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "lib/bf16/bf16_gemm.hpp"

namespace fsdp {
namespace {

/// Redirects stdout to memory for the lifetime of the object.
class StdoutCapture {
 public:
  StdoutCapture() {
    std::fflush(stdout);
    memory_ = ::memfd_create("stdout", MFD_CLOEXEC);
    saved_ = ::dup(STDOUT_FILENO);
    active_ = memory_ >= 0 && saved_ >= 0 && ::dup2(memory_, STDOUT_FILENO) >= 0;
  }
  StdoutCapture(const StdoutCapture&) = delete;
  StdoutCapture& operator=(const StdoutCapture&) = delete;
  ~StdoutCapture() {
    restore();
    if (memory_ >= 0) ::close(memory_);
    if (saved_ >= 0) ::close(saved_);
  }

  bool active() const { return active_; }

  /// Ends the capture. \return what was printed
  std::string text() {
    restore();
    std::string all;
    std::array<char, 4096> block{};
    ::lseek(memory_, 0, SEEK_SET);
    for (ssize_t got = 0; (got = ::read(memory_, block.data(), block.size())) > 0;) {
      all.append(block.data(), static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  void restore() {
    if (!active_) return;
    std::fflush(stdout);
    ::dup2(saved_, STDOUT_FILENO);
    active_ = false;
  }

  int memory_ = -1;
  int saved_ = -1;
  bool active_ = false;
};

}  // namespace

namespace detail {

std::string implementation_of_verbose(std::string_view text) {
  // Format: onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:...
  constexpr std::string_view kExecution = ",exec,cpu,matmul,";
  const auto at = text.rfind(kExecution);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + kExecution.size());
  return std::string(text.substr(0, text.find_first_of(",\n")));
}

}  // namespace detail

std::string onednn_bf16_implementation() {
  const auto a = at::ones({256, 256}, at::kBFloat16);
  StdoutCapture capture;
  if (!capture.active()) return "";
  torch::verbose::_mkldnn_set_verbose(1);
  at::mm(a, a);
  torch::verbose::_mkldnn_set_verbose(0);
  return detail::implementation_of_verbose(capture.text());
}

}  // namespace fsdp
