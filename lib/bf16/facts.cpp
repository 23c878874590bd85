#include "lib/bf16/facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <system_error>

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
          {"failure", g.failure}};
}

GemmFacts gemm_from(const json& j) {
  return {j.at("bf16_tflops"),      j.at("float32_tflops"), j.at("float32_aten_tflops"),
          j.at("bf16_aten_tflops"), j.at("size"),           j.at("implementation"),
          j.at("widened"),          j.at("failure")};
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
  return {{"rank", facts.rank},
          {"node", facts.node},
          {"host", facts.host},
          {"gpu", facts.gpu ? gpu_to_json(*facts.gpu) : json(nullptr)},
          {"gpu_missing", facts.gpu_missing},
          {"gpu_broken", facts.gpu_broken},
          {"processor", processor_to_json(facts.processor)},
          {"gemm", gemm_to_json(facts.gemm)},
          {"job_reduce", reduce_to_json(facts.job_reduce)},
          {"node_reduce", reduce_to_json(facts.node_reduce)},
          {"across_reduce", reduce_to_json(facts.across_reduce)},
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
    facts.node_reduce = reduce_from(j.at("node_reduce"));
    facts.across_reduce = reduce_from(j.at("across_reduce"));
    for (const auto& pair : j.at("pairs")) facts.pairs.push_back({pair.at("other_host"), pair.at("bus_gb_per_s")});
    return facts;
  } catch (const json::exception& error) {
    throw std::logic_error(fmt::format("facts of a rank: {}", error.what()));
  }
}

namespace detail {
namespace {

/// Shortens a transport: "NET/Socket/0/GDRDMA" -> "NET/Socket", "P2P/CUMEM/read" -> "P2P/CUMEM", "P2P/direct pointer"
/// -> "P2P/direct"
std::string first_two_parts(std::string_view path) {
  path = path.substr(0, path.find_first_of(" \r\n(["));
  const auto slash = path.find('/');
  if (slash == std::string_view::npos) return std::string(path);
  return std::string(path.substr(0, path.find('/', slash + 1)));
}

}  // namespace

std::string transports_in_log(std::string_view text) {
  std::set<std::string> found;
  std::string network;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    constexpr std::string_view kVia = " via ";
    constexpr std::string_view kNetwork = "Using network ";
    const bool connection =
        line.find(" Channel ") != std::string_view::npos || line.find(" CollNet ") != std::string_view::npos;
    if (const auto at = line.find(kVia); connection && at != std::string_view::npos) {
      found.insert(first_two_parts(line.substr(at + kVia.size())));
    }
    // The name of a plugin may contain spaces: "AWS Libfabric".
    if (const auto at = line.find(kNetwork); at != std::string_view::npos) {
      network = "NET/" + std::string(line.substr(at + kNetwork.size()));
    }
  }
  if (found.empty()) return network;
  return fmt::format("{}", fmt::join(found, " + "));
}

}  // namespace detail

NcclLog::NcclLog() {
  if (std::getenv("NCCL_DEBUG_FILE") != nullptr || std::getenv("NCCL_DEBUG") != nullptr) return;
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  if (error) return;
  file_ = folder / fmt::format("fsdp-nccl-{}-{}.log", ::getuid(), ::getpid());
  ::setenv("NCCL_DEBUG", "INFO", 1);
  ::setenv("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM,COLL", 1);
  ::setenv("NCCL_DEBUG_FILE", file_.c_str(), 1);
}

NcclLog::~NcclLog() {
  std::error_code ignored;
  if (!file_.empty()) std::filesystem::remove(file_, ignored);
}

std::string NcclLog::transport_since() {
  if (file_.empty()) return "";
  std::ifstream stream(file_);
  stream.seekg(static_cast<std::streamoff>(seen_bytes_));
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  seen_bytes_ += text.size();
  return detail::transports_in_log(text);
}

}  // namespace fsdp
