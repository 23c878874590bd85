#include "lib/compute/device/gpus.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/compute/device/gpu_table.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

double unit_of(const std::string& suffix) {
  constexpr std::array<std::pair<const char*, double>, 13> kUnits{{{"", 1.0},
                                                                   {"b", 1.0},
                                                                   {"k", 1024.0},
                                                                   {"kib", 1024.0},
                                                                   {"kb", 1e3},
                                                                   {"m", 1048576.0},
                                                                   {"mib", 1048576.0},
                                                                   {"mb", 1e6},
                                                                   {"g", 1073741824.0},
                                                                   {"gib", 1073741824.0},
                                                                   {"gb", 1e9},
                                                                   {"tib", 1099511627776.0},
                                                                   {"tb", 1e12}}};
  for (const auto& [name, factor] : kUnits) {
    if (suffix == name) return factor;
  }
  return 0;
}

}  // namespace

std::int64_t parse_bytes(std::string_view text, std::string_view option) {
  const auto plain = lower(text);
  double value = 0;
  const auto end = plain.data() + plain.size();
  const auto [rest, error] = std::from_chars(plain.data(), end, value);
  const double unit = error == std::errc() ? unit_of(std::string(rest, end)) : 0;
  const double bytes = value * unit;
  if (!(bytes >= 0) || bytes > 1e17 || unit == 0) {
    throw UsageError(std::string(option) + " is '" + std::string(text) +
                     "', give a number of bytes such as 79GiB, 512MB or 8e10");
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t parse_bytes_or_percent(std::string_view text, std::int64_t whole, std::string_view option) {
  if (!text.ends_with('%')) return parse_bytes(text, option);
  const auto number = text.substr(0, text.size() - 1);
  double percent = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), percent);
  if (error != std::errc() || rest != number.data() + number.size() || !(percent >= 0 && percent < 100)) {
    throw UsageError(std::string(option) + " is '" + std::string(text) + "', give 0% to less than 100%, or bytes");
  }
  return static_cast<std::int64_t>(percent / 100 * static_cast<double>(whole));
}

std::string gpu_names() {
  std::string names;
  for (const auto& gpu : known_gpus()) names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  return names;
}

GpuSpec gpu_of(const DeviceInfo& info) {
  return {info.name, info.total_bytes, 10 * info.compute_major + info.compute_minor, info.multiprocessors};
}

GpuSpec find_gpu(std::string_view text) {
  auto name = lower(text);
  if (name == "a100") name = "a100-40g";
  if (name == "h100-80g" || name == "h100-80gb") name = "h100";
  if (name == "v100") name = "v100-16g";
  if (name.ends_with("gb") && name.find('-') != std::string::npos) name.pop_back();
  for (const auto& gpu : known_gpus()) {
    if (name == gpu.name) return {gpu.name, gpu.total_mib * kMiB, gpu.compute_capability, gpu.multiprocessors};
  }
  if (name.empty() || name[0] < '0' || name[0] > '9') {
    throw UsageError("--gpu is '" + std::string(text) + "', choose from " + gpu_names() + ", or give bytes (79GiB)");
  }
  GpuSpec gpu;  // of an unknown make: an A100's kernels
  gpu.name = std::string(text);
  gpu.total_bytes = parse_bytes(text, "--gpu");
  if (gpu.total_bytes < 64 * kMiB) throw UsageError("--gpu " + std::string(text) + " is too little memory for a GPU");
  return gpu;
}

DeviceOverheads usual_overheads(const GpuSpec& gpu, int communicators, bool several_nodes) {
  DeviceOverheads overheads;
  // Context of a process that loaded libtorch_cuda's kernels lazily, as nvidia-smi shows it beside PyTorch's own
  // "reserved": 0.4 to 0.6 GiB, more on GPUs with more multiprocessors (local memory per thread is set aside).
  overheads.context_bytes = (gpu.compute_capability >= 90 ? 620 : (gpu.compute_capability >= 80 ? 500 : 400)) * kMiB;
  // A communicator's channels: up to 16 (NVLink) or 32, each with buffers of NCCL_BUFFSIZE (4 MiB) per direction for
  // the Simple protocol and 1 MiB and less for the others; some 160 MiB measured on NVLink nodes, more with the
  // network's.
  overheads.nccl_bytes = communicators * (several_nodes ? 260 : 180) * kMiB;
  return overheads;
}

}  // namespace fsdp
