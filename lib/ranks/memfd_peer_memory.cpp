// Memory shared by the processes of one node: the first rank creates an anonymous file (memfd) and the others open it
// through /proc. Unlike a file in /dev/shm, it leaves nothing behind when the job is killed, and the size of that mount
// does not limit it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>
#include <random>
#include <string>

#include "lib/base/files/descriptor.hpp"
#include "lib/ranks/mpi_group.hpp"

namespace fsdp::detail {
namespace {

/// 64 KiB on many AArch64 systems, whose madvise() refuses anything between.
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t n) { return (n + page_bytes() - 1) / page_bytes() * page_bytes(); }

class MemfdPeerMemory final : public PeerMemory {
 public:
  MemfdPeerMemory(std::byte* base, std::size_t header_bytes, std::size_t size_bytes)
      : base_(base), header_bytes_(header_bytes), size_bytes_(size_bytes) {}
  MemfdPeerMemory(const MemfdPeerMemory&) = delete;
  MemfdPeerMemory& operator=(const MemfdPeerMemory&) = delete;
  ~MemfdPeerMemory() override { ::munmap(base_, header_bytes_ + size_bytes_); }

  std::byte* data() override { return base_ + header_bytes_; }
  std::size_t size_bytes() const override { return size_bytes_; }
  SharedCounter& counter(std::size_t index) override {
    return reinterpret_cast<SharedCounter*>(base_)[index + 1];  // 0 holds the nonce
  }
  void forget(std::size_t offset_bytes, std::size_t size_bytes) override {
    // Whole pages inside the range only. On a shared file mapping this drops page table entries, never data.
    const auto begin = round_up(offset_bytes);
    const auto end = (offset_bytes + size_bytes) / page_bytes() * page_bytes();
    if (begin < end) ::madvise(data() + begin, end - begin, MADV_DONTNEED);
  }

 private:
  std::byte* base_;
  std::size_t header_bytes_;
  std::size_t size_bytes_;
};

std::byte* map(int fd, std::size_t bytes) {
  struct stat info {};
  // Touching a page past the end of a shorter file would kill the process.
  if (fd < 0 || ::fstat(fd, &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes) return nullptr;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

}  // namespace

std::unique_ptr<PeerMemory> make_memfd_peer_memory(ProcessGroup& group, std::size_t size_bytes,
                                                   std::size_t num_counters) {
  const auto node = group.split_by_node();
  const double alone = node->size() == group.size() ? 0.0 : 1.0;
  if (group.all_reduce(alone, Reduce::max) > 0) return nullptr;

  const std::size_t header_bytes = round_up((num_counters + 1) * sizeof(SharedCounter));
  const std::size_t data_bytes = round_up(size_bytes);
  const std::size_t total_bytes = header_bytes + data_bytes;
  Descriptor file;  // the mapping stays when it is closed
  std::byte* base = nullptr;
  // Process id, descriptor, and a nonce that identifies the file: in another pid namespace, that process id may belong
  // to another process, even to a rank of another job.
  std::random_device entropy;
  const auto nonce = static_cast<std::int64_t>((std::uint64_t{entropy()} << 32 | entropy()) | 1u);
  std::array<std::int64_t, 3> address{::getpid(), -1, nonce};
  if (group.rank() == 0) {
    file.reset(::memfd_create("fsdp-peer-memory", MFD_CLOEXEC));
    if (file.get() >= 0 && ::ftruncate(file.get(), static_cast<off_t>(total_bytes)) == 0)
      base = map(file.get(), total_bytes);
    if (base != nullptr) {
      for (std::size_t i = 0; i <= num_counters; ++i) new (base + i * sizeof(SharedCounter)) SharedCounter;
      reinterpret_cast<SharedCounter*>(base)->value = static_cast<std::uint64_t>(nonce);
      address[1] = file.get();
    }
  }
  group.broadcast(std::as_writable_bytes(std::span(address)), 0);
  if (group.rank() != 0 && address[1] >= 0) {
    const auto path = "/proc/" + std::to_string(address[0]) + "/fd/" + std::to_string(address[1]);
    file.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    base = map(file.get(), total_bytes);
    if (base != nullptr && reinterpret_cast<SharedCounter*>(base)->value != static_cast<std::uint64_t>(address[2])) {
      ::munmap(base, total_bytes);
      base = nullptr;
    }
  }
  const bool everywhere = group.all_reduce(base == nullptr ? 1.0 : 0.0, Reduce::max) == 0.0;
  if (!everywhere) {
    if (base != nullptr) ::munmap(base, total_bytes);
    return nullptr;
  }
  return std::make_unique<MemfdPeerMemory>(base, header_bytes, data_bytes);
}

}  // namespace fsdp::detail
