#include "lib/base/process/process_strain.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "lib/base/process/usable_resources.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

/// \return the file's first number; NaN where there is none
double number_in(const fs::path& file) {
  std::ifstream in(file);
  double value = 0;
  return in >> value ? value : ProcessStrain::kUnknown;
}

/// The second number of each thread's schedstat, in nanoseconds. What threads waited that have ended is not in it.
double starved_seconds(const fs::path& proc) {
  double most_ns = ProcessStrain::kUnknown;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator(proc / "self/task", error)) {
    std::ifstream in(thread.path() / "schedstat");
    double ran_ns = 0, waited_ns = 0;
    if (in >> ran_ns >> waited_ns) most_ns = std::fmax(most_ns, waited_ns);
  }
  return 1e-9 * most_ns;
}

/// Processors that this process may use, at most 16 of them: they are much alike.
std::vector<int> some_processors() {
  constexpr std::size_t kMost = 16;
  auto processors = allowed_cores();
  processors.resize(std::min(processors.size(), kMost));
  return processors;
}

/// The hottest of the sensors of processors: Intel's, AMD's, and those of others that name them so.
double celsius_of_processors(const fs::path& sys) {
  double hottest = ProcessStrain::kUnknown;
  std::error_code error;
  for (const auto& sensor : fs::directory_iterator(sys / "class/hwmon", error)) {
    std::ifstream in(sensor.path() / "name");
    std::string name;
    in >> name;
    if (name != "coretemp" && name != "k10temp" && name != "cpu_thermal") continue;
    std::error_code unreadable;
    for (const auto& file : fs::directory_iterator(sensor.path(), unreadable)) {
      const auto file_name = file.path().filename().string();
      if (!file_name.starts_with("temp") || !file_name.ends_with("_input")) continue;
      hottest = std::fmax(hottest, number_in(file.path()) / 1000);
    }
  }
  return hottest;
}

}  // namespace

ProcessStrain process_strain(const fs::path& proc, const fs::path& sys) {
  ProcessStrain strain;
  strain.starved_seconds = starved_seconds(proc);
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) strain.major_faults = static_cast<double>(usage.ru_majflt);
  double clocks = 0;
  int num_clocks = 0;
  for (const int processor : some_processors()) {
    const auto folder = sys / fmt::format("devices/system/cpu/cpu{}", processor);
    const double throttles = number_in(folder / "thermal_throttle/core_throttle_count");
    if (!std::isnan(throttles)) strain.throttles = (std::isnan(strain.throttles) ? 0 : strain.throttles) + throttles;
    const double kilohertz = number_in(folder / "cpufreq/scaling_cur_freq");
    if (std::isnan(kilohertz)) continue;
    clocks += kilohertz / 1000;
    ++num_clocks;
  }
  if (num_clocks > 0) strain.megahertz = clocks / num_clocks;
  strain.celsius = celsius_of_processors(sys);
  return strain;
}

}  // namespace fsdp
