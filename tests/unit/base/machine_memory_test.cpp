#include "lib/base/machine_memory.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/support/temp_files.hpp"

using fsdp::machine_memory_bytes;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

std::int64_t physical_bytes() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
}

}  // namespace

TEST_SUITE("base/machine memory") {
  TEST_CASE("without control groups it is the machine's") {
    const fsdp::test::TempDir folder;
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == physical_bytes());
    CHECK(machine_memory_bytes() <= physical_bytes());
    CHECK(machine_memory_bytes() > 0);
  }

  TEST_CASE("version 2: the least limit of the group and those around it") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
    const auto job = folder / "cgroup/system.slice/slurmstepd.scope/job_7";
    write(job / "step_0/user/task_0/memory.max", "max\n");
    write(job / "step_0/memory.max", std::to_string(96 * kMiB) + "\n");
    write(job / "memory.max", std::to_string(64 * kMiB) + "\n");

    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 64 * kMiB);
  }

  TEST_CASE("version 1: the memory controller's group, among other controllers") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup",
          "5:cpu,cpuacct:/other\n4:memory:/slurm/uid_0/job_7\n1:name=systemd:/x\nnonsense\n");
    write(folder / "cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", std::to_string(32 * kMiB) + "\n");
    write(folder / "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write(folder / "cgroup/memory/other/memory.limit_in_bytes", "4096\n");

    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 32 * kMiB);
  }

  TEST_CASE("a limit beyond the machine is none") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup", "0::/a\n");
    write(folder / "cgroup/a/memory.max", "99999999999999999999999\n");
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == physical_bytes());
  }
}
