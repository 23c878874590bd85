#include "lib/bf16/error_counters.hpp"

#include <cmath>
#include <fstream>
#include <optional>
#include <system_error>

#include "lib/base/process/process_strain.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

/// Sums a file over all memory controllers. \return nothing where none has it
std::optional<double> sum_of_controllers(const fs::path& sys, const char* file) {
  std::optional<double> sum;
  std::error_code error;
  for (const auto& controller : fs::directory_iterator(sys / "devices/system/edac/mc", error)) {
    std::ifstream in(controller.path() / file);
    double count = 0;
    if (in >> count) sum = sum.value_or(0) + count;
  }
  return sum;
}

}  // namespace

std::map<std::string, double> error_counts(const NvmlGpu* gpu, const fs::path& sys) {
  std::map<std::string, double> counts;
  const auto add = [&](const char* name, const std::optional<double>& count) {
    if (count && std::isfinite(*count)) counts[name] = *count;
  };
  add("memory errors of the host, corrected", sum_of_controllers(sys, "ce_count"));
  add("memory errors of the host, not corrected", sum_of_controllers(sys, "ue_count"));
  add("slowdowns of processors for their heat", process_strain("/proc", sys).throttles);
  if (gpu == nullptr) return counts;
  const auto reading = gpu->read();
  add("memory errors of the GPU, corrected", reading.ecc_corrected);
  add("memory errors of the GPU, not corrected", reading.ecc_uncorrected);
  add("remapped rows of the GPU's memory", reading.remapped_rows);
  return counts;
}

std::vector<CounterFacts> counter_facts(const std::map<std::string, double>& before,
                                        const std::map<std::string, double>& after) {
  std::vector<CounterFacts> counters;
  for (const auto& [name, now] : after) {
    const auto then = before.find(name);
    const double first = then == before.end() ? now : then->second;
    if (first != 0 || now != 0) counters.push_back({name, first, now});
  }
  return counters;
}

}  // namespace fsdp
