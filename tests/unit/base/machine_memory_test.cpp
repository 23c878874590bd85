#include "lib/base/process/usable_resources.hpp"

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
  TEST_CASE("without control groups the machine's memory counts") {
    const fsdp::test::TempDir folder;
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == physical_bytes());
    CHECK(machine_memory_bytes() <= physical_bytes());
    CHECK(machine_memory_bytes() > 0);
  }

  TEST_CASE("version 2: the lowest limit of the group and its parents counts") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
    const auto job = folder / "cgroup/system.slice/slurmstepd.scope/job_7";
    write(job / "step_0/user/task_0/memory.max", "max\n");
    write(job / "step_0/memory.max", std::to_string(96 * kMiB) + "\n");
    write(job / "memory.max", std::to_string(64 * kMiB) + "\n");

    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 64 * kMiB);
  }

  TEST_CASE("version 1: the memory controller's group is found among other controllers") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup",
          "5:cpu,cpuacct:/other\n4:memory:/slurm/uid_0/job_7\n1:name=systemd:/x\nnonsense\n");
    write(folder / "cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", std::to_string(32 * kMiB) + "\n");
    write(folder / "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write(folder / "cgroup/memory/other/memory.limit_in_bytes", "4096\n");

    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 32 * kMiB);
  }

  TEST_CASE("version 2: memory.high, the limit at which a group is slowed down, counts as well") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup", "0::/job_7\n");
    write(folder / "cgroup/job_7/memory.max", "max\n");
    write(folder / "cgroup/job_7/memory.high", std::to_string(48 * kMiB) + "\n");
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 48 * kMiB);
  }

  TEST_CASE("in a container the mounted part of the hierarchy counts") {
    const fsdp::test::TempDir folder;
    // With a cgroup namespace the container's group is the root; without one its path is relative to the host's root.
    write(folder / "own/proc/self/cgroup", "0::/\n");
    write(folder / "own/cgroup/memory.max", std::to_string(40 * kMiB) + "\n");
    CHECK(machine_memory_bytes(folder / "own/proc", folder / "own/cgroup") == 40 * kMiB);

    const auto point = (folder / "host/groups").string();
    write(folder / "host/proc/self/cgroup", "0::/docker/abc/inner\n");
    write(folder / "host/proc/self/mountinfo",
          "30 23 0:26 /docker/abc " + point + " rw,nosuid shared:4 - cgroup2 cgroup rw\n");
    write(folder / "host/groups/inner/memory.max", std::to_string(20 * kMiB) + "\n");
    write(folder / "host/groups/memory.max", std::to_string(30 * kMiB) + "\n");
    CHECK(machine_memory_bytes(folder / "host/proc", folder / "host/cgroup") == 20 * kMiB);
  }

  TEST_CASE("version 1: the memory controller may be mounted elsewhere or together with others") {
    const fsdp::test::TempDir folder;
    const auto point = (folder / "cgroups/mem").string();
    write(folder / "proc/self/cgroup", "4:cpu,memory:/pbs/7.server\n0::/x\n");
    write(folder / "proc/self/mountinfo", "31 23 0:27 / " + (folder / "cgroups/pids").string() +
                                              " rw - cgroup cgroup rw,pids\n35 31 0:32 / " + point +
                                              " rw,relatime - cgroup cgroup rw,cpu,memory\n");
    write(folder / "cgroups/mem/pbs/7.server/memory.limit_in_bytes", std::to_string(24 * kMiB) + "\n");
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 24 * kMiB);
  }

  TEST_CASE("a group outside of the mounted hierarchy has no visible limit of its own") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup", "0::/../other\n");
    write(folder / "cgroup/memory.max", std::to_string(16 * kMiB) + "\n");
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == 16 * kMiB);
  }

  TEST_CASE("a limit above the machine's memory is ignored") {
    const fsdp::test::TempDir folder;
    write(folder / "proc/self/cgroup", "0::/a\n");
    write(folder / "cgroup/a/memory.max", "99999999999999999999999\n");
    CHECK(machine_memory_bytes(folder / "proc", folder / "cgroup") == physical_bytes());
  }
}
