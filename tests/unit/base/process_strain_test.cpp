#include "lib/base/process/process_strain.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <cmath>
#include <fstream>
#include <string>

#include "tests/support/temp_files.hpp"

using namespace fsdp;

TEST_SUITE("base/process_strain") {
  TEST_CASE("threads, processors and sensors, as the kernel shows them") {
    const test::TempDir folder;
    const auto write = [&](const std::filesystem::path& file, const std::string& text) {
      std::filesystem::create_directories((folder.path() / file).parent_path());
      std::ofstream(folder.path() / file) << text << '\n';
    };
    write("proc/self/task/7/schedstat", "1000 2500000000 3");
    write("proc/self/task/8/schedstat", "1000 500000000 3");
    cpu_set_t set;
    REQUIRE(::sched_getaffinity(0, sizeof(set), &set) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    const auto processor = "sys/devices/system/cpu/cpu" + std::to_string(first);
    write(processor + "/cpufreq/scaling_cur_freq", "3100000");
    write(processor + "/thermal_throttle/core_throttle_count", "4");
    write("sys/class/hwmon/hwmon0/name", "nvme");
    write("sys/class/hwmon/hwmon0/temp1_input", "91000");
    write("sys/class/hwmon/hwmon1/name", "coretemp");
    write("sys/class/hwmon/hwmon1/temp1_input", "61000");
    write("sys/class/hwmon/hwmon1/temp2_input", "63500");
    write("sys/class/hwmon/hwmon1/temp2_crit", "100000");
    const auto strain = process_strain(folder.path() / "proc", folder.path() / "sys");
    CHECK(strain.starved_seconds == doctest::Approx(2.5));
    CHECK(strain.megahertz == 3100);
    CHECK(strain.throttles == 4);
    CHECK(strain.celsius == 63.5);
    CHECK(strain.major_faults >= 0);
  }

  TEST_CASE("what the system does not tell is not known") {
    const test::TempDir folder;
    const auto strain = process_strain(folder.path(), folder.path());
    CHECK(std::isnan(strain.starved_seconds));
    CHECK(std::isnan(strain.megahertz));
    CHECK(std::isnan(strain.throttles));
    CHECK(std::isnan(strain.celsius));
  }
}
