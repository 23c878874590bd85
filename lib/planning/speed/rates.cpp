#include "lib/planning/speed/rates.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace detail {

double number_in(const nlohmann::json& json, const char* key, const std::string& where) {
  constexpr double kMost = 1e18;
  const auto found = json.find(key);
  // Written so that NaN fails the test, too.
  if (found == json.end() || !found->is_number() || !(found->get<double>() >= 0 && found->get<double>() <= kMost)) {
    throw FormatError(where + ": '" + key + "' is missing or no number of at least 0");
  }
  return found->get<double>();
}

const nlohmann::json& object_in(const nlohmann::json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) {
    throw FormatError(where + ": '" + key + "' is missing or no object");
  }
  return *found;
}

}  // namespace detail

using detail::number_in;

namespace {

constexpr double kGiga = 1e9, kTera = 1e12;
constexpr std::uint64_t kMostCheckBytes = 64 << 20;

/// Visits every numeric member together with its JSON key; reading and writing share this list.
template <typename Rates, typename Visit>
void visit_numbers(Rates& rates, const Visit& visit) {
  visit("float32_flops", rates.float32_flops);
  visit("half_flops", rates.half_flops);
  visit("float32_peak", rates.float32_peak);
  visit("half_peak", rates.half_peak);
  visit("attention_part", rates.attention_part);
  visit("bytes_per_second", rates.bytes_per_second);
  visit("update_bytes_per_second", rates.update_bytes_per_second);
  visit("shared_part", rates.shared_part);
  visit("alone_factor", rates.alone_factor);
  visit("launch_seconds", rates.launch_seconds);
  visit("operation_seconds", rates.operation_seconds);
  visit("link_bytes_per_second", rates.link_bytes_per_second);
  visit("network_bytes_per_second", rates.network_bytes_per_second);
  visit("host_bytes_per_second", rates.host_bytes_per_second);
  visit("latency_seconds", rates.latency_seconds);
  visit("network_latency_seconds", rates.network_latency_seconds);
}

/// \return the lowest value among the ranks that measured this key
double slowest(const nlohmann::json& ranks, const char* key, const std::string& where) {
  double least = 0;
  for (const auto& rank : ranks) {
    if (!rank.is_object() || !rank.contains("gemm") || !rank["gemm"].is_object()) {
      throw FormatError(where + ": a rank has no 'gemm'", Remedy::of_rates);
    }
    const double value = number_in(rank["gemm"], key, where);
    if (value > 0) least = least == 0 ? value : std::min(least, value);
  }
  return kTera * least;
}

}  // namespace

DeviceRates rates_of_gpu(const GpuFacts& gpu) {
  DeviceRates rates;
  rates.source = std::string(gpu.name) + "'s data sheet";
  rates.is_gpu = true;
  rates.float32_peak = kTera * gpu.peak.float32;
  rates.half_peak = kTera * gpu.peak.bf16;
  // cuBLAS on large products: 250 to 270 of an A100's 312 TFLOP/s, 650 to 750 of an H100's 989 (power, not code).
  rates.half_flops = rates.half_peak * (gpu.compute_capability >= 90 ? 0.72 : 0.83);
  rates.float32_flops = rates.float32_peak * 0.9;
  // FlashAttention-2, forward and backward together (Dao, arXiv:2307.08691): 190 of 312 on A100; a part of Hopper's.
  rates.attention_part = gpu.compute_capability >= 90 ? 0.55 : 0.7;
  rates.bytes_per_second = rates.update_bytes_per_second = kGiga * gpu.memory_gb_per_s * 0.85;
  rates.multiprocessors = gpu.multiprocessors;
  // Launch overhead: ATen's dispatch and the driver, measured with an empty kernel.
  rates.launch_seconds = 7e-6;
  rates.operation_seconds = 2.5e-6;
  // NVLink bandwidth of nccl-tests for large messages: 230 of 300 GB/s on A100, 360 of 450 GB/s on H100.
  rates.link_bytes_per_second = kGiga * gpu.link_gb_per_s * 0.78;
  // Default until a measurement is available: four ports of 100 Gb/s, or two of 200 Gb/s.
  rates.network_bytes_per_second = 50 * kGiga;
  rates.host_bytes_per_second = kGiga * (gpu.compute_capability >= 90 ? 50 : (gpu.compute_capability >= 80 ? 24 : 12));
  rates.latency_seconds = 3e-6;
  rates.network_latency_seconds = 8e-6;
  return rates;
}

DeviceRates rates_of_processor(double float32_flops, double half_flops, std::string source) {
  if (float32_flops <= 0) float32_flops = half_flops / 2;
  if (half_flops <= 0) half_flops = float32_flops;
  DeviceRates rates;
  rates.source = std::move(source);
  rates.float32_flops = rates.float32_peak = float32_flops;
  rates.half_flops = rates.half_peak = half_flops;
  rates.attention_part = 0.5;
  // Typical for a core of a current server: exponentials and sums run through its caches, AdamW from memory.
  rates.bytes_per_second = 10 * kGiga;
  rates.update_bytes_per_second = 30 * kGiga;
  // Ranks that share a core find each other's data in the caches: two cores of a Zen 4 kept 0.92 to 1.0 of their speed.
  rates.shared_part = 0.95;
  rates.alone_factor = 1.7;
  rates.operation_seconds = 1e-6;
  rates.link_bytes_per_second = 5 * kGiga;
  rates.network_bytes_per_second = 10 * kGiga;
  rates.host_bytes_per_second = 10 * kGiga;
  rates.latency_seconds = 2e-6;
  rates.network_latency_seconds = 20e-6;
  return rates;
}

std::string take_check(const std::filesystem::path& file, DeviceRates& rates, int threads) {
  const auto where = file.string();
  const auto json = parse_json_or_discard(read_text_file(file, kMostCheckBytes), where);
  if (json.is_discarded() || !json.is_object() || !json.contains("ranks") || !json["ranks"].is_array() ||
      json["ranks"].empty()) {
    throw FormatError(where + ": no 'ranks'", Remedy::of_rates);
  }
  const auto half = slowest(json["ranks"], "bf16_tflops", where);
  const auto wide = slowest(json["ranks"], "float32_tflops", where);
  const bool on_gpu = json["ranks"][0].contains("device_type") && json["ranks"][0]["device_type"] == "cuda";
  if (on_gpu != rates.is_gpu) {
    throw FormatError(where + (on_gpu ? ": was measured on GPUs, but ranks on CPUs are asked about"
                                      : ": was measured on CPUs, but ranks on GPUs are asked about"));
  }
  if (half <= 0 && wide <= 0) throw FormatError(where + ": no rank has measured products");
  if (on_gpu) {
    if (half > 0) rates.half_flops = half;
    if (wide > 0) rates.float32_flops = wide;
  } else {
    rates = rates_of_processor(wide / threads, half / threads, {});
  }
  rates.source = "fsdp-bf16check's " + where;
  double inside = 0;
  if (json.contains("inside_nodes") && json["inside_nodes"].is_array()) {
    for (const auto& node : json["inside_nodes"]) {
      const double value = node.is_object() ? number_in(node, "bus_gb_per_s", where) : 0;
      if (value > 0) inside = inside == 0 ? value : std::min(inside, value);
    }
  }
  if (inside > 0) rates.link_bytes_per_second = kGiga * inside;
  if (json.contains("between_nodes") && json["between_nodes"].is_object()) {
    const double between = number_in(json["between_nodes"], "bus_gb_per_s", where);
    if (between > 0) rates.network_bytes_per_second = kGiga * between;
  }
  const auto& first = json["ranks"][0];
  return first.contains("device") && first["device"].is_string() ? first["device"].get<std::string>() : std::string();
}

nlohmann::json to_json(const DeviceRates& rates) {
  nlohmann::json json{{"source", rates.source}, {"gpu", rates.is_gpu}, {"multiprocessors", rates.multiprocessors}};
  visit_numbers(rates, [&](const char* key, double value) { json[key] = value; });
  for (int p = 0; p < kNumStepParts; ++p) {
    json["factors"][to_string(static_cast<StepPart>(p))] = element(rates.factors, p);
  }
  return json;
}

DeviceRates rates_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) throw FormatError(where + ": no rates");
  DeviceRates rates;
  if (!json.contains("source") || !json["source"].is_string() || !json.contains("gpu") || !json["gpu"].is_boolean()) {
    throw FormatError(where + ": 'source' or 'gpu' is missing");
  }
  rates.source = json["source"].get<std::string>();
  rates.is_gpu = json["gpu"].get<bool>();
  rates.multiprocessors = static_cast<int>(std::min(1e6, number_in(json, "multiprocessors", where)));
  visit_numbers(rates, [&](const char* key, double& value) { value = number_in(json, key, where); });
  const auto factors = json.find("factors");
  if (factors == json.end() || !factors->is_object()) throw FormatError(where + ": 'factors' is missing");
  for (int p = 0; p < kNumStepParts; ++p) {
    const double factor = number_in(*factors, to_string(static_cast<StepPart>(p)), where);
    element(rates.factors, p) = factor;
  }
  if (rates.float32_flops <= 0 || rates.half_flops <= 0 || rates.bytes_per_second <= 0 ||
      rates.update_bytes_per_second <= 0 || rates.shared_part <= 0 || rates.alone_factor < 1 ||
      rates.link_bytes_per_second <= 0 || rates.network_bytes_per_second <= 0 || rates.host_bytes_per_second <= 0 ||
      rates.attention_part <= 0) {
    throw FormatError(where + ": a rate is 0");
  }
  return rates;
}

}  // namespace fsdp
