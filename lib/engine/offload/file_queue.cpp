#include "lib/engine/offload/file_queue.hpp"

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"

namespace fsdp {

namespace detail {

bool FilePiece::advance(std::int64_t moved, int& error) {
  error = 0;
  if (moved == -EINTR || moved == -EAGAIN) return false;
  if (moved <= 0) {
    error = moved < 0 ? static_cast<int>(-moved) : EIO;
    return true;
  }
  const auto n = static_cast<std::uint64_t>(moved);
  transfer.data += n;
  transfer.offset += n;
  transfer.bytes -= n;
  return transfer.bytes == 0;
}

void fail(const ScratchFile& file, bool write, int error) {
  auto text = file.directory().string() + ": the scratch file of --offload-optimizer cannot be " +
              (write ? "written: " : "read: ") + std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT)
    text += ": " + format_bytes(static_cast<double>(file.free_bytes())) + " are free there";
  throw IoError(text + "; the run goes on from its last checkpoint (--restart-checkpoint-file latest)");
}

}  // namespace detail

std::unique_ptr<FileQueue> make_file_queue(const ScratchFile& file) {
  const char* wish = std::getenv("FSDP_OFFLOAD_IO");
  std::unique_ptr<FileQueue> queue;
  if (wish == nullptr || std::string_view(wish) != "threads") queue = detail::make_uring_queue(file);
  return queue != nullptr ? std::move(queue) : detail::make_thread_queue(file);
}

}  // namespace fsdp
