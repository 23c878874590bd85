#include "lib/planning/memory/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

constexpr const char* kFile = "memory.json";
constexpr std::uint64_t kMostBytes = 1 << 20;

MemoryOutcome read_outcome(const std::filesystem::path& file) {
  const auto text = read_text_file(file, kMostBytes);
  const auto json = parse_json_or_discard(text, file.string());
  if (json.is_discarded() || !json.is_object()) {
    throw FormatError(file.string() + ": is not JSON", Remedy::of_calibration);
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const auto whole = [&](const char* key, std::int64_t least) {
    const auto found = json.find(key);
    // fsdp-finetune writes neither fractions nor numbers beyond 2^53.
    if (found == json.end() || !found->is_number_integer() || found->get<double>() < static_cast<double>(least) ||
        found->get<double>() > static_cast<double>(kMost)) {
      throw FormatError(file.string() + ": '" + key + "' is missing or no number of at least " + std::to_string(least) +
                        "; it is not memory.json of a run of fsdp-finetune");
    }
    return found->get<std::int64_t>();
  };
  MemoryOutcome outcome;
  if (!json.contains("device") || !json["device"].is_string()) throw FormatError(file.string() + ": no 'device'");
  outcome.device = json["device"].get<std::string>();
  outcome.gpu_bytes = whole("card_bytes", 0);
  outcome.nodes = static_cast<int>(std::min<std::int64_t>(whole("nodes", 1), 1 << 20));
  outcome.communicators = static_cast<int>(std::min<std::int64_t>(whole("communicators", 0), 2));
  outcome.predicted_bytes = whole("predicted_bytes", 1);
  outcome.measured_bytes = whole("measured_bytes", 1);
  outcome.overhead_bytes = whole("overhead_bytes", 0);
  outcome.alloc_retries = whole("alloc_retries", 0);
  return outcome;
}

}  // namespace

double relative_error(const MemoryOutcome& outcome) {
  return static_cast<double>(outcome.predicted_bytes - outcome.measured_bytes) /
         static_cast<double>(outcome.measured_bytes);
}

nlohmann::json to_json(const MemoryOutcome& outcome) {
  return {{"device", outcome.device},
          {"card_bytes", outcome.gpu_bytes},
          {"nodes", outcome.nodes},
          {"communicators", outcome.communicators},
          {"predicted_bytes", outcome.predicted_bytes},
          {"measured_bytes", outcome.measured_bytes},
          {"relative_error", relative_error(outcome)},
          {"overhead_bytes", outcome.overhead_bytes},
          {"alloc_retries", outcome.alloc_retries}};
}

std::vector<MemoryOutcome> read_memory_outcomes(const std::filesystem::path& path) {
  std::vector<MemoryOutcome> outcomes;
  for (const auto& file : files_of_runs(path, kFile)) outcomes.push_back(read_outcome(file));
  return outcomes;
}

MemoryCalibration calibrate_memory(std::span<const MemoryOutcome> outcomes, const CalibrationTarget& target) {
  MemoryCalibration calibration;
  const auto gpu = static_cast<double>(target.gpu_bytes);
  for (const auto& outcome : outcomes) {
    if ((outcome.gpu_bytes > 0) != (target.gpu_bytes > 0)) continue;
    const bool same_gpu = std::abs(static_cast<double>(outcome.gpu_bytes) - gpu) <= 0.02 * gpu;
    if (target.gpu_bytes > 0 && same_gpu && (outcome.nodes > 1) == target.several_nodes &&
        outcome.communicators >= target.communicators) {
      calibration.overhead_bytes = std::max(calibration.overhead_bytes.value_or(0), outcome.overhead_bytes);
    }
    if (outcome.alloc_retries > 0) continue;
    const auto error = relative_error(outcome);
    calibration.lowest_error = calibration.runs == 0 ? error : std::min(calibration.lowest_error, error);
    calibration.highest_error = calibration.runs == 0 ? error : std::max(calibration.highest_error, error);
    ++calibration.runs;
  }
  return calibration;
}

}  // namespace fsdp
