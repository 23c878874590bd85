#include "lib/base/process/blocked_thread.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/support/temp_files.hpp"

using fsdp::BlockedThread;
using fsdp::detail::file_access;

TEST_SUITE("base/blocked thread") {
  TEST_CASE("a thread that reads a pipe nobody writes to") {
    const fsdp::test::TempDir folder;
    const auto pipe = folder / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const int end = ::open(pipe.c_str(), O_RDWR);
    REQUIRE(end >= 0);
    std::unique_ptr<BlockedThread> watched;
    std::atomic<bool> begun = false;
    std::thread reader([&] {
      watched = std::make_unique<BlockedThread>();
      begun = true;
      char byte = 0;
      CHECK(::read(end, &byte, 1) == 1);
    });
    while (!begun) std::this_thread::yield();
    std::string seen;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (seen.empty() && std::chrono::steady_clock::now() < limit) {
      seen = watched->look();
      std::this_thread::yield();
    }
    CHECK(::write(end, "x", 1) == 1);
    reader.join();
    ::close(end);
    CHECK(seen == "a read of " + std::filesystem::canonical(pipe).string());
  }

  TEST_CASE("a thread that computes is not blocked") {
    BlockedThread own;
    std::atomic<bool> done = false;
    std::thread watcher([&] {
      for (int i = 0; i < 20; ++i) CHECK(own.look() == "");
      done = true;
    });
    while (!done) std::this_thread::yield();
    watcher.join();
  }

  TEST_CASE("lines of the kernel") {
    const fsdp::test::TempDir folder;
    ::symlink("/scratch/step-8", (folder / "7").c_str());
    ::symlink("socket:[4711]", (folder / "8").c_str());
    ::symlink("/dev/pts/1", (folder / "9").c_str());
    ::symlink("/dev/shm/run/log", (folder / "10").c_str());
    const auto descriptors = folder.path().string();
    const auto line = [](long number, const char* rest) { return std::to_string(number) + rest; };
    CHECK(file_access(line(SYS_fsync, " 0x7 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f01"), descriptors) ==
          "fsync of /scratch/step-8");
    CHECK(file_access(line(SYS_pwrite64, " 0x7 0x55 0x1000"), descriptors) == "a write to /scratch/step-8");
    const char* name = "/scratch/run";
    CHECK(file_access(fmt::format("{} 0xffffff9c {:#x} 0x0", SYS_openat, reinterpret_cast<std::uintptr_t>(name)),
                      descriptors) == "the opening of /scratch/run");
    CHECK(file_access(line(SYS_openat, " 0xffffff9c 0x55"), descriptors) == "the opening of a file");
    CHECK(file_access(line(SYS_read, " 0x8 0x55"), descriptors) == "");
    CHECK(file_access(line(SYS_read, " 0x9 0x55"), descriptors) == "");
    CHECK(file_access(line(SYS_read, " 0xa 0x55"), descriptors) == "a read of /dev/shm/run/log");
    CHECK(file_access(line(SYS_read, " 0x10 0x55"), descriptors) == "");
    CHECK(file_access(line(SYS_futex, " 0x7 0x55"), descriptors) == "");
    for (const char* other : {"", "running", "-1 0x7ffc 0x7f01", "nonsense", "17"})
      CHECK(file_access(other, descriptors) == "");
  }
}
