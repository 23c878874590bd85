#include "tests/support/torch_doctest.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/engine/offload/file_queue.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::FileQueue;
using fsdp::kTransferUnit_bytes;
using fsdp::ScratchFile;
using fsdp::test::TempDir;

namespace {

/// Bytes aligned to the transfer unit.
class Room {
 public:
  explicit Room(std::size_t bytes) : all_(bytes + kTransferUnit_bytes), bytes_(bytes) {}
  std::byte* data() {
    const auto skip = kTransferUnit_bytes - reinterpret_cast<std::uintptr_t>(all_.data()) % kTransferUnit_bytes;
    return all_.data() + skip % kTransferUnit_bytes;
  }
  void fill(int seed) {
    for (std::size_t i = 0; i < bytes_; ++i) data()[i] = static_cast<std::byte>((i * 31 + i / 4096 + seed) & 255);
  }
  bool operator==(Room& other) { return std::equal(data(), data() + bytes_, other.data()); }

 private:
  std::vector<std::byte> all_;
  std::size_t bytes_;
};

/// Both kinds of queue, or only threads if the kernel does not allow io_uring.
template <typename Body>
void for_queues(const ScratchFile& file, const Body& body) {
  for (auto* make : {&fsdp::detail::make_uring_queue, &fsdp::detail::make_thread_queue}) {
    const auto queue = make(file);
    if (queue == nullptr) {
      MESSAGE("io_uring is not to be had here");
      continue;
    }
    CAPTURE(queue->name());
    body(*queue);
  }
}

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_SUITE("offload/file queue") {
  TEST_CASE("data is read back as written, for any order of waits and more transfers than the kernel queues") {
    const TempDir dir;
    const ScratchFile file(dir.path());
    for_queues(file, [](FileQueue& queue) {
      // 300 transfers of one unit, and one of many pieces whose length is no multiple of a piece.
      constexpr std::size_t kSmall = 300;
      const std::size_t large = (std::size_t{5} << 20) + 3 * kTransferUnit_bytes;
      std::vector<std::unique_ptr<Room>> rooms, back;
      std::vector<FileQueue::Ticket> tickets;
      std::uint64_t offset = 0;
      for (std::size_t i = 0; i <= kSmall; ++i) {
        const auto bytes = i < kSmall ? kTransferUnit_bytes : large;
        rooms.push_back(std::make_unique<Room>(bytes));
        back.push_back(std::make_unique<Room>(bytes));
        rooms.back()->fill(static_cast<int>(i));
        tickets.push_back(queue.start({true, rooms.back()->data(), bytes, offset}));
        offset += bytes;
      }
      for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) queue.wait(*ticket);
      tickets.clear();
      offset = 0;
      for (std::size_t i = 0; i <= kSmall; ++i) {
        const auto bytes = i < kSmall ? kTransferUnit_bytes : large;
        tickets.push_back(queue.start({false, back[i]->data(), bytes, offset}));
        offset += bytes;
      }
      for (const auto ticket : tickets) queue.wait(ticket);
      for (std::size_t i = 0; i <= kSmall; ++i) CHECK(*rooms[i] == *back[i]);
    });
  }

  TEST_CASE("a failed transfer throws in wait(), and the queue still works") {
    const TempDir dir;
    const ScratchFile file(dir.path());
    for_queues(file, [&](FileQueue& queue) {
      Room room(kTransferUnit_bytes);
      room.fill(1);
      queue.wait(queue.start({true, room.data(), kTransferUnit_bytes, 0}));
      // Nothing can be read beyond the end of the file.
      const auto missing = queue.start({false, room.data(), kTransferUnit_bytes, std::uint64_t{1} << 40});
      CHECK_THROWS_WITH_AS(queue.wait(missing), doctest::Contains("cannot be read"), fsdp::IoError);
      {
        const FileSizeLimit limit(kTransferUnit_bytes);
        const auto full = queue.start({true, room.data(), kTransferUnit_bytes, kTransferUnit_bytes});
        CHECK_THROWS_WITH_AS(queue.wait(full), doctest::Contains((dir.path().string() + ": ").c_str()), fsdp::IoError);
      }
      Room back(kTransferUnit_bytes);
      queue.wait(queue.start({false, back.data(), kTransferUnit_bytes, 0}));
      CHECK(room == back);
    });
  }

  TEST_CASE("a scratch file has no name; an error names the directory") {
    const TempDir dir;
    {
      ScratchFile file(dir.path() / "made" / "for it");
      CHECK(file.reserve(1 << 20));
      CHECK(std::filesystem::is_empty(dir.path() / "made" / "for it"));
      CHECK_FALSE(file.reserve(std::uint64_t{1} << 60));
    }
    CHECK_THROWS_WITH_AS(ScratchFile("/dev/null/x"),
                         doctest::Contains("/dev/null/x: no scratch file can be made there"), fsdp::IoError);
  }
}
