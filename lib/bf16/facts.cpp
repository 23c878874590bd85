#include "lib/bf16/facts.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fsdp {
namespace {

using nlohmann::json;

LibraryVersion version_from(const std::string& text) {
  LibraryVersion v;
  if (std::sscanf(text.c_str(), "%d.%d.%d", &v.major, &v.minor, &v.patch) < 1) {
    throw std::logic_error("no version: " + text);
  }
  return v;
}

json gpu_to_json(const DeviceInfo& gpu) {
  return {{"name", gpu.name},
          {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
          {"bytes", gpu.total_bytes},
          {"driver", to_text(gpu.driver)},
          {"runtime", to_text(gpu.runtime)},
          {"nccl_built", to_text(gpu.nccl_built)},
          {"nccl", to_text(gpu.nccl)},
          {"pci_bus_id", gpu.pci_bus_id},
          {"uuid", gpu.uuid},
          {"numa_node", gpu.numa_node}};
}

DeviceInfo gpu_from(const json& j) {
  DeviceInfo gpu;
  const auto capability = version_from(j.at("compute_capability"));
  gpu.name = j.at("name");
  gpu.compute_major = capability.major;
  gpu.compute_minor = capability.minor;
  gpu.total_bytes = j.at("bytes");
  gpu.driver = version_from(j.at("driver"));
  gpu.runtime = version_from(j.at("runtime"));
  gpu.nccl_built = version_from(j.at("nccl_built"));
  gpu.nccl = version_from(j.at("nccl"));
  gpu.pci_bus_id = j.at("pci_bus_id");
  gpu.uuid = j.value("uuid", std::string());
  gpu.numa_node = j.at("numa_node");
  return gpu;
}

json processor_to_json(const ProcessorFacts& p) {
  return {{"name", p.name},         {"avx512_bf16", p.avx512_bf16},     {"amx_bf16", p.amx_bf16},
          {"amx_tile", p.amx_tile}, {"amx_permitted", p.amx_permitted}, {"amx_refusal", p.amx_refusal},
          {"arm_bf16", p.arm_bf16}, {"arm_sve_bf16", p.arm_sve_bf16}};
}

ProcessorFacts processor_from(const json& j) {
  return {j.at("name"),          j.at("avx512_bf16"), j.at("amx_bf16"), j.at("amx_tile"),
          j.at("amx_permitted"), j.at("amx_refusal"), j.at("arm_bf16"), j.at("arm_sve_bf16")};
}

json gemm_to_json(const GemmFacts& g) {
  return {{"bf16_tflops", g.bf16_tflops},
          {"float32_tflops", g.float32_tflops},
          {"float32_aten_tflops", g.float32_aten_tflops},
          {"bf16_aten_tflops", g.bf16_aten_tflops},
          {"size", g.size},
          {"implementation", g.implementation},
          {"widened", g.widened},
          {"failure", g.failure},
          {"wrong", g.wrong}};
}

GemmFacts gemm_from(const json& j) {
  return {j.at("bf16_tflops"),      j.at("float32_tflops"), j.at("float32_aten_tflops"),
          j.at("bf16_aten_tflops"), j.at("size"),           j.at("implementation"),
          j.at("widened"),          j.at("failure"),        j.at("wrong")};
}

json reduce_to_json(const ReduceFacts& r) {
  return {{"ranks", r.ranks},         {"bytes", r.bytes}, {"bus_gb_per_s", r.bus_gb_per_s},
          {"transport", r.transport}, {"wrong", r.wrong}, {"failure", r.failure},
          {"sums_in", r.sums_in}};
}

ReduceFacts reduce_from(const json& j) {
  return {j.at("ranks"), j.at("bytes"),   j.at("bus_gb_per_s"), j.at("transport"),
          j.at("wrong"), j.at("failure"), j.at("sums_in")};
}

json transfer_to_json(const TransferFacts& t) {
  return {{"bytes", t.bytes}, {"bus_gb_per_s", t.bus_gb_per_s}, {"wrong", t.wrong}, {"sender", t.sender}};
}

TransferFacts transfer_from(const json& j) {
  return {j.at("bytes"), j.at("bus_gb_per_s"), j.at("wrong"), j.at("sender")};
}

}  // namespace

std::string to_text(const LibraryVersion& version) {
  if (version == LibraryVersion{}) return "0.0";
  if (version.patch == 0) return fmt::format("{}.{}", version.major, version.minor);
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

json to_json(const RankFacts& facts) {
  json pairs = json::array();
  for (const auto& pair : facts.pairs) {
    pairs.push_back({{"other_host", pair.other_host}, {"bus_gb_per_s", pair.bus_gb_per_s}});
  }
  json counters = json::array();
  for (const auto& counter : facts.counters)
    counters.push_back({{"name", counter.name}, {"before", counter.before}, {"after", counter.after}});
  return {{"rank", facts.rank},
          {"node", facts.node},
          {"host", facts.host},
          {"gpu", facts.gpu ? gpu_to_json(*facts.gpu) : json(nullptr)},
          {"gpu_missing", facts.gpu_missing},
          {"gpu_broken", facts.gpu_broken},
          {"processor", processor_to_json(facts.processor)},
          {"gemm", gemm_to_json(facts.gemm)},
          {"job_reduce", reduce_to_json(facts.job_reduce)},
          {"all_gather", transfer_to_json(facts.gather)},
          {"reduce_scatter", transfer_to_json(facts.scatter)},
          {"node_reduce", reduce_to_json(facts.node_reduce)},
          {"across_reduce", reduce_to_json(facts.across_reduce)},
          {"bandwidth",
           {{"copy_gb_per_s", facts.bandwidth.copy_gb_per_s},
            {"to_device_gb_per_s", facts.bandwidth.to_device_gb_per_s},
            {"from_device_gb_per_s", facts.bandwidth.from_device_gb_per_s}}},
          {"counters", counters},
          {"pairs", pairs}};
}

RankFacts rank_facts_from_json(const json& j) {
  try {
    RankFacts facts;
    facts.rank = j.at("rank");
    facts.node = j.at("node");
    facts.host = j.at("host");
    // A merge patch that sets "gpu" to null removes the key.
    if (j.contains("gpu") && !j.at("gpu").is_null()) facts.gpu = gpu_from(j.at("gpu"));
    facts.gpu_missing = j.at("gpu_missing");
    facts.gpu_broken = j.at("gpu_broken");
    facts.processor = processor_from(j.at("processor"));
    facts.gemm = gemm_from(j.at("gemm"));
    facts.job_reduce = reduce_from(j.at("job_reduce"));
    facts.gather = transfer_from(j.at("all_gather"));
    facts.scatter = transfer_from(j.at("reduce_scatter"));
    facts.node_reduce = reduce_from(j.at("node_reduce"));
    facts.across_reduce = reduce_from(j.at("across_reduce"));
    const auto& bandwidth = j.at("bandwidth");
    facts.bandwidth = {bandwidth.at("copy_gb_per_s"), bandwidth.at("to_device_gb_per_s"),
                       bandwidth.at("from_device_gb_per_s")};
    for (const auto& counter : j.at("counters"))
      facts.counters.push_back({counter.at("name"), counter.at("before"), counter.at("after")});
    for (const auto& pair : j.at("pairs")) facts.pairs.push_back({pair.at("other_host"), pair.at("bus_gb_per_s")});
    return facts;
  } catch (const json::exception& error) {
    throw std::logic_error(fmt::format("facts of a rank: {}", error.what()));
  }
}

}  // namespace fsdp
