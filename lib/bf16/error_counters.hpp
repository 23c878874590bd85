#pragma once
// Counts of errors and slowdowns that hardware tells of: a node whose counts grow while it is measured is about to
// fail.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/bf16/facts.hpp"
#include "lib/compute/device/nvml.hpp"

namespace fsdp {

/// Counts by name, of what the system tells: memory errors of the host (Linux EDAC), slowdowns of its processors for
/// their heat, and of a GPU memory errors, remapped rows and what lowers its clock.
/// \param gpu  null: none \param sys  mount point of sysfs
std::map<std::string, double> error_counts(const NvmlGpu* gpu, const std::filesystem::path& sys = "/sys");

/// Joins two looks. Counts that are 0 in both are left out.
std::vector<CounterFacts> counter_facts(const std::map<std::string, double>& before,
                                        const std::map<std::string, double>& after);

}  // namespace fsdp
