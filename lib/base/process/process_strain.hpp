#pragma once
// Causes in the machine why this process is slow: processors that others use, memory that is on disk, heat.
#include <filesystem>
#include <limits>

namespace fsdp {

/// NaN: the system does not tell.
struct ProcessStrain {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double starved_seconds = kUnknown;  ///< in which a thread was ready to run but had no processor; the most of any
  double major_faults = kUnknown;     ///< pages that it had to wait for, since they were on disk
  double throttles = kUnknown;        ///< times that its processors were slowed down for their heat, since the boot
  double megahertz = kUnknown;        ///< mean clock of its processors at the moment
  double celsius = kUnknown;          ///< of the hottest processor
};

/// Counts since the process began, where nothing else is said. Costs about a millisecond.
/// Linux Documentation/scheduler/sched-stats.rst, admin-guide/pm/cpufreq.rst, hwmon/sysfs-interface.rst.
/// \param proc, sys  mount points of these file systems
ProcessStrain process_strain(const std::filesystem::path& proc = "/proc", const std::filesystem::path& sys = "/sys");

}  // namespace fsdp
