#include "lib/planning/speed/speed_outcome.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/median.hpp"
#include "lib/planning/speed/rates.hpp"

namespace fsdp {

using detail::number_in, detail::object_in;

namespace {

constexpr const char* kFile = "speed.json";
constexpr std::uint64_t kMostOutcomeBytes = 1 << 20;

nlohmann::json parts_json(const std::array<double, kNumStepParts>& parts) {
  nlohmann::json json = nlohmann::json::object();
  for (int p = 0; p < kNumStepParts; ++p) json[to_string(static_cast<StepPart>(p))] = element(parts, p);
  return json;
}

std::array<double, kNumStepParts> parts_in(const nlohmann::json& json, const std::string& where) {
  std::array<double, kNumStepParts> parts{};
  for (int p = 0; p < kNumStepParts; ++p)
    element(parts, p) = number_in(json, to_string(static_cast<StepPart>(p)), where);
  return parts;
}

SpeedOutcome read_outcome(const std::filesystem::path& file) {
  const auto where = file.string();
  const auto json = parse_json_or_discard(read_text_file(file, kMostOutcomeBytes), where);
  if (json.is_discarded() || !json.is_object() || !json.contains("device") || !json["device"].is_string()) {
    throw FormatError(where + ": is not speed.json of a run of fsdp-finetune");
  }
  SpeedOutcome outcome;
  outcome.device = json["device"].get<std::string>();
  if (!json.contains("model") || !json["model"].is_string()) throw FormatError(where + ": no 'model'");
  outcome.model = json["model"].get<std::string>();
  outcome.is_half = number_in(json, "bits", where) < 32;
  outcome.has_fp8_products = json.value("fp8", nlohmann::json(false)) == true;  // absent in older files
  const auto whole = [&](const char* key) {
    return static_cast<int>(std::clamp(number_in(json, key, where), 1.0, 1e6));
  };
  outcome.ranks = whole("ranks");
  outcome.ranks_per_node = whole("ranks_per_node");
  outcome.steps = whole("steps");
  outcome.share.cores = number_in(json, "cores", where);
  outcome.share.busy = number_in(json, "busy_part", where);
  outcome.tokens = number_in(json, "tokens_per_step", where);
  outcome.rates = rates_from_json(object_in(json, "rates", where), where);
  const auto& predicted = object_in(json, "predicted", where);
  outcome.predicted.seconds = number_in(predicted, "step_seconds", where);
  outcome.predicted.parts = parts_in(object_in(predicted, "parts", where), where);
  const auto& measured = object_in(json, "measured", where);
  outcome.seconds = number_in(measured, "step_seconds", where);
  if (measured.contains("parts")) outcome.parts = parts_in(object_in(measured, "parts", where), where);
  if (outcome.seconds <= 0 || outcome.predicted.seconds <= 0) throw FormatError(where + ": a step took no time");
  return outcome;
}

/// Rejects factors below 1/100 or above 100, which no misjudged device explains.
bool is_sane(double factor) {
  constexpr double kMost = 100;
  return factor >= 1 / kMost && factor <= kMost;
}

/// \return measured time of the part over the time that the rates predict without their factors; none when the part is
/// too short for a meaningful ratio
std::optional<double> factor_of(const SpeedOutcome& outcome, StepPart part) {
  constexpr double kLeast = 0.001;  // fraction of a step
  const auto p = to_index(part);
  const bool has_parts = std::any_of(outcome.parts.begin(), outcome.parts.end(), [](double s) { return s > 0; });
  if (has_parts && (outcome.predicted.parts[p] < kLeast * outcome.seconds || outcome.parts[p] <= 0))
    return std::nullopt;
  const double took = has_parts ? outcome.parts[p] : outcome.seconds;
  const double factor =
      outcome.rates.factors[p] * took / (has_parts ? outcome.predicted.parts[p] : outcome.predicted.seconds);
  return is_sane(factor) ? std::optional(factor) : std::nullopt;
}

}  // namespace

double relative_error(const SpeedOutcome& outcome) { return outcome.seconds / outcome.predicted.seconds - 1; }

std::string beside_prediction(const SpeedOutcome& outcome) {
  constexpr double kFar = 1.5;
  const double times = outcome.seconds / outcome.predicted.seconds;
  if (times >= kFar)
    return fmt::format("{:.1f} times slower than predicted: is the machine busy?{}", times,
                       outcome.rates.is_gpu ? ""
                                            : " Threads that wait keep cores from others: OMP_WAIT_POLICY=passive, or "
                                              "a smaller OMP_NUM_THREADS, then helps");
  if (times <= 1 / kFar) return fmt::format("{:.1f} times faster than predicted", 1 / times);
  return fmt::format("prediction {:+.1f} %", 100 * relative_error(outcome));
}

std::string slow_words(double times, std::string_view transport) {
  constexpr double kFar = 2.0;
  if (times < kFar) return "";
  std::string text = fmt::format("steps take {:.1f} times as long as predicted", times);
  if (!transport.empty()) text += fmt::format(", with NCCL over {}", transport);
  const auto uses = [&](std::string_view name) { return transport.find(name) != std::string_view::npos; };
  if (uses("NET/Socket"))
    return text +
           ". These are sockets: if the nodes have InfiniBand or RoCE, NCCL does not see it (a container needs "
           "/dev/infiniband; NCCL_IB_HCA names the card)";
  if (uses("SHM"))
    return text +
           ". GPUs of a node then send through the host's memory, which happens where a task sees its own GPU alone: "
           "show every task all GPUs of its node (srun --gpu-bind=none)";
  return text + ". If the GPUs have no other work, fsdp-bf16check measures each of them and the links between them";
}

nlohmann::json to_json(const SpeedOutcome& outcome) {
  nlohmann::json json{{"device", outcome.device},
                      {"model", outcome.model},
                      {"bits", outcome.is_half ? 16 : 32},
                      {"fp8", outcome.has_fp8_products},
                      {"ranks", outcome.ranks},
                      {"ranks_per_node", outcome.ranks_per_node},
                      {"cores", outcome.share.cores},
                      {"busy_part", outcome.share.busy},
                      {"steps", outcome.steps},
                      {"tokens_per_step", outcome.tokens},
                      {"rates", to_json(outcome.rates)},
                      {"relative_error", relative_error(outcome)}};
  json["predicted"] = {{"step_seconds", outcome.predicted.seconds},
                       {"tokens_per_second", outcome.tokens / outcome.predicted.seconds},
                       {"parts", parts_json(outcome.predicted.parts)}};
  json["measured"] = {{"step_seconds", outcome.seconds}, {"tokens_per_second", outcome.tokens / outcome.seconds}};
  if (!outcome.rates.is_gpu) json["measured"]["parts"] = parts_json(outcome.parts);
  return json;
}

std::vector<SpeedOutcome> read_speed_outcomes(const std::filesystem::path& path) {
  std::vector<SpeedOutcome> outcomes;
  for (const auto& file : files_of_runs(path, kFile)) outcomes.push_back(read_outcome(file));
  return outcomes;
}

SpeedCalibration calibrate_speed(std::span<const SpeedOutcome> outcomes, const SpeedSubject& subject,
                                 DeviceRates& rates) {
  SpeedCalibration calibration;
  std::array<std::vector<double>, kNumStepParts> factors;
  std::vector<double> half, wide;
  for (const auto& outcome : outcomes) {
    if (outcome.model != subject.model || outcome.rates.is_gpu != rates.is_gpu ||
        outcome.has_fp8_products != subject.has_fp8_products)
      continue;
    if (!is_sane(outcome.seconds / outcome.predicted.seconds)) continue;
    const auto error = relative_error(outcome);
    calibration.lowest_error = calibration.runs == 0 ? error : std::min(calibration.lowest_error, error);
    calibration.highest_error = calibration.runs == 0 ? error : std::max(calibration.highest_error, error);
    ++calibration.runs;
    (outcome.is_half ? half : wide).push_back(outcome.rates.flops(outcome.is_half));
    for (int p = 0; p < kNumStepParts; ++p) {
      if (const auto factor = factor_of(outcome, static_cast<StepPart>(p))) element(factors, p).push_back(*factor);
    }
  }
  if (calibration.runs == 0) return calibration;
  if (!half.empty()) rates.half_flops = median(half);
  if (!wide.empty()) rates.float32_flops = median(wide);
  for (std::size_t p = 0; p < factors.size(); ++p) {
    if (!factors[p].empty()) rates.factors[p] = median(factors[p]);
  }
  rates.source +=
      calibration.runs == 1 ? " and an earlier run" : " and " + std::to_string(calibration.runs) + " earlier runs";
  return calibration;
}

}  // namespace fsdp
