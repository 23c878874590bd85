#include "lib/base/process/usable_resources.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/support/environment.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::threads_of_rank;
using fsdp::usable_cores;
using fsdp::test::Environment;

namespace {

void put(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

int cores_of_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

TEST_SUITE("base/usable cores") {
  TEST_CASE("without a quota the affinity mask counts") {
    const fsdp::test::TempDir folder;
    CHECK(usable_cores(folder / "proc", folder / "cgroup") == cores_of_mask());
    put(folder / "proc/self/cgroup", "0::/job\n");
    put(folder / "cgroup/job/cpu.max", "max 100000\n");
    CHECK(usable_cores(folder / "proc", folder / "cgroup") == cores_of_mask());
  }

  TEST_CASE("the lowest quota of the group and its parents counts, a fraction of a core as one") {
    const fsdp::test::TempDir folder;
    put(folder / "proc/self/cgroup", "0::/job/step\n");
    put(folder / "cgroup/job/step/cpu.max", "max 100000\n");
    put(folder / "cgroup/job/cpu.max", "30000 100000\n");
    CHECK(usable_cores(folder / "proc", folder / "cgroup") == 1);
    put(folder / "cgroup/job/cpu.max", "100000000 100000\n");  // more than the machine has
    CHECK(usable_cores(folder / "proc", folder / "cgroup") == cores_of_mask());
  }

  TEST_CASE("version 1: the controller named cpu is found among others") {
    const fsdp::test::TempDir folder;
    put(folder / "proc/self/cgroup", "5:cpu,cpuacct:/job\n4:cpuset:/other\n");
    put(folder / "cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
    put(folder / "cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    put(folder / "cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put(folder / "cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(usable_cores(folder / "proc", folder / "cgroup") == 1);
  }

  TEST_CASE("a thread that cannot be started: the message names its purpose and the limits") {
    const fsdp::test::TempDir folder;
    put(folder / "proc/self/cgroup", "0::/job/step\n");
    put(folder / "cgroup/job/step/pids.max", "max\n");
    put(folder / "cgroup/job/pids.max", "100\n");
    put(folder / "cgroup/job/pids.current", "99\n");
    CHECK(fsdp::thread_limits(folder / "proc", folder / "cgroup")
              .find("at most 100 in this control group (pids.max, 99 in "
                    "use)") != std::string::npos);
    CHECK(fsdp::start_thread("counts", [] { return 7; }) == 7);
    const auto fail = [] { throw std::system_error(EAGAIN, std::generic_category()); };
    CHECK_THROWS_WITH_AS(fsdp::start_thread("counts", fail),
                         doctest::Contains("no thread could be started that counts"), fsdp::RuntimeFailure);
  }

  TEST_CASE("threads per rank: OMP_NUM_THREADS up to the number of cores, otherwise cores divided by ranks") {
    const auto threads = [](const char* wish, int ranks, int cores) {
      const Environment environment(wish == nullptr ? Environment::Variables{}
                                                    : Environment::Variables{{"OMP_NUM_THREADS", wish}});
      return threads_of_rank(ranks, cores);
    };
    CHECK(threads(nullptr, 2, 8).threads == 4);
    CHECK(threads(nullptr, 16, 8).threads == 1);
    for (const char* none : {"", "abc", "0", "-1"}) CHECK(threads(none, 2, 8).threads == 4);
    CHECK(threads("8", 4, 8).threads == 8);  // more ranks than cores: the user's choice
    CHECK(threads("4,2", 1, 8).threads == 4);
    CHECK(threads("8", 1, 8).warning.empty());
    for (const char* many : {"9", "100000", "99999999999999999999"}) {
      const auto bounded = threads(many, 1, 8);
      CHECK(bounded.threads == 8);
      CHECK(bounded.warning.find(many) != std::string::npos);
      CHECK(bounded.warning.find("8 cores") != std::string::npos);
    }
  }
}
