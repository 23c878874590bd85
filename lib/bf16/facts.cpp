#include "lib/bf16/facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <system_error>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

NcclLog::NcclLog(bool collectives) {
  if (std::getenv("NCCL_DEBUG_FILE") != nullptr || std::getenv("NCCL_DEBUG") != nullptr) return;
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  if (error) return;
  file_ = folder / fmt::format("fsdp-nccl-{}-{}.log", ::getuid(), ::getpid());
  ::setenv("NCCL_DEBUG", "INFO", 1);
  ::setenv("NCCL_DEBUG_SUBSYS", collectives ? "INIT,NET,P2P,SHM,COLL" : "INIT,NET,P2P,SHM", 1);
  ::setenv("NCCL_DEBUG_FILE", file_.c_str(), 1);
}

NcclLog::~NcclLog() { remove(); }

void NcclLog::remove() {
  std::error_code ignored;
  if (!file_.empty()) std::filesystem::remove(file_, ignored);
  file_.clear();
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

#if defined(__aarch64__)
#elif defined(__x86_64__)
#endif

namespace fsdp {
namespace detail {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

void apply_flag(std::string_view flag, ProcessorFacts& facts) {
  if (flag == "avx512_bf16") facts.avx512_bf16 = true;
  if (flag == "amx_bf16") facts.amx_bf16 = true;
  if (flag == "amx_tile") facts.amx_tile = true;
}

}  // namespace

ProcessorFacts parse_cpuinfo(std::string_view text) {
  ProcessorFacts facts;
  // All cores report the same, so the lines of the first core suffice.
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto key = trim(line.substr(0, colon));
    auto value = trim(line.substr(colon + 1));
    if (key == "model name" && facts.name.empty()) facts.name = value;
    if (key != "flags") continue;
    while (!value.empty()) {
      const auto space = std::min(value.find(' '), value.size());
      apply_flag(value.substr(0, space), facts);
      value.remove_prefix(std::min(space + 1, value.size()));
    }
    break;
  }
  return facts;
}

void apply_arm_hwcap2(unsigned long hwcap2, ProcessorFacts& facts) {
  // Source: Linux arch/arm64/include/uapi/asm/hwcap.h
  constexpr unsigned long kSveBf16 = 1UL << 12;
  constexpr unsigned long kBf16 = 1UL << 14;
  facts.arm_bf16 = (hwcap2 & kBf16) != 0;
  facts.arm_sve_bf16 = (hwcap2 & kSveBf16) != 0;
}

}  // namespace detail

namespace {

/// Reads the features by CPUID, for machines without /proc. CPUID still reports features that the kernel has disabled.
[[maybe_unused]] void apply_cpuid([[maybe_unused]] ProcessorFacts& facts) {
#if defined(__x86_64__)
  // Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    facts.amx_bf16 = (edx & 1U << 22) != 0;
    facts.amx_tile = (edx & 1U << 24) != 0;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) facts.avx512_bf16 = (eax & 1U << 5) != 0;
#endif
}

[[maybe_unused]] void ask_for_tiles(ProcessorFacts& facts) {
#if defined(__x86_64__)
  // Source: Linux Documentation/arch/x86/xstate.rst
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  facts.amx_permitted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  if (!facts.amx_permitted) facts.amx_refusal = std::strerror(errno);
#else
  facts.amx_permitted = false;
#endif
}

}  // namespace

ProcessorFacts read_processor() {
  ProcessorFacts facts;
#if defined(__aarch64__)
  // On AArch64, /proc/cpuinfo has neither a name nor these features; under emulation it describes another processor.
  detail::apply_arm_hwcap2(::getauxval(AT_HWCAP2), facts);
#else
  std::ifstream file("/proc/cpuinfo");
  std::stringstream text;
  text << file.rdbuf();
  facts = detail::parse_cpuinfo(text.str());
  if (text.str().empty()) apply_cpuid(facts);
  if (facts.amx_tile) ask_for_tiles(facts);
#endif
  utsname machine{};
  if (facts.name.empty())
    facts.name = ::uname(&machine) == 0 ? std::string(machine.machine) + " processor" : "processor";
  return facts;
}

}  // namespace fsdp
