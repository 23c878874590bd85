#include "lib/engine/offload/file_queue.hpp"

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "lib/base/process/variables.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace detail {

bool FilePiece::advance(std::int64_t moved, int& error) {
  error = 0;
  if (moved == -EINTR || moved == -EAGAIN) return false;
  if (moved <= 0) {
    error = moved < 0 ? static_cast<int>(-moved) : EIO;
    return true;
  }
  const std::uint64_t n = moved;
  transfer.data += n;
  transfer.offset += n;
  transfer.bytes -= n;
  return transfer.bytes == 0;
}

void fail(const ScratchFile& file, bool write, int error) {
  auto text = file.directory().string() + ": the scratch file of offloaded values cannot be " +
              (write ? "written: " : "read: ") + std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT)
    text += ": " + format_bytes(static_cast<double>(file.free_bytes())) + " are free there";
  throw IoError(text, Remedy::restart_from_latest);
}

}  // namespace detail

std::unique_ptr<FileQueue> make_file_queue(const ScratchFile& file) {
  std::unique_ptr<FileQueue> queue;
  if (variable_value("FSDP_OFFLOAD_IO") != "threads") queue = detail::make_uring_queue(file);
  return queue != nullptr ? std::move(queue) : detail::make_thread_queue(file);
}

}  // namespace fsdp
