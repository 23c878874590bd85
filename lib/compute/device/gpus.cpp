#include "lib/compute/device/gpus.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

// Total: what the driver reports as the device's total memory (nvidia-smi shows a little more: it counts the part set
// aside for ECC and the driver). PyTorch's out-of-memory messages quote the same number: 39.39 GiB (A100 40 GB), 79.15
// GiB (A100 80 GB), 79.10 GiB (H100), 139.80 GiB (H200), 31.73 GiB (V100 32 GB), 15.77 GiB (V100 16 GB), 44.40 GiB
// (L40S, A40), 22.05 GiB (L4, A10). Multiprocessors and compute capability: NVIDIA's CUDA GPU tables. Products, memory
// and links: NVIDIA's data sheets, dense figures, SXM parts where there are any.
constexpr std::array kGpus{
    GpuFacts{"a100-40g", 40338, 80, 108, {312, 19.5}, 1555, 300},
    GpuFacts{"a100-80g", 81050, 80, 108, {312, 19.5}, 2039, 300},
    GpuFacts{"h100", 81000, 90, 132, {989, 67}, 3350, 450},
    GpuFacts{"h200", 143155, 90, 132, {989, 67}, 4800, 450},
    GpuFacts{"b200", 182000, 100, 148, {2250, 75}, 8000, 900},
    GpuFacts{"gh200-96g", 96700, 90, 132, {989, 67}, 4000, 450},
    GpuFacts{"v100-16g", 16150, 70, 80, {125, 15.7}, 900, 150},
    GpuFacts{"v100-32g", 32490, 70, 80, {125, 15.7}, 900, 150},
    GpuFacts{"l40s", 45465, 89, 142, {362, 91.6}, 864, 32},
    GpuFacts{"l4", 22580, 89, 58, {121, 30.3}, 300, 32},
    GpuFacts{"a40", 45465, 86, 84, {150, 37.4}, 696, 32},
    GpuFacts{"a10", 22580, 86, 72, {125, 31.2}, 600, 32},
    GpuFacts{"a30", 24060, 80, 56, {165, 10.3}, 933, 32},
    GpuFacts{"t4", 14910, 75, 40, {65, 8.1}, 320, 16},
    GpuFacts{"rtx-3090", 24110, 86, 82, {71, 35.6}, 936, 32},
    GpuFacts{"rtx-4090", 24080, 89, 128, {165, 82.6}, 1008, 32},
};

/// "NVIDIA A100-SXM4-40GB": " nvidia a100 sxm4 40gb ".
std::string words_of(std::string_view text) {
  std::string out = " ";
  for (const char c : text) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_word || out.back() != ' ') out += is_word ? static_cast<char>(std::tolower(c)) : ' ';
  }
  return out.back() == ' ' ? out : out + " ";
}

/// The model name without the memory size: " a100 ".
std::string make_of(const GpuFacts& gpu) {
  const std::string_view name = gpu.name;
  return words_of(name.starts_with("rtx") ? name : name.substr(0, name.find('-')));
}

bool is_called(const std::string& words, const GpuFacts& gpu) { return words.find(make_of(gpu)) != std::string::npos; }

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

/// A bipartite matching of ranks with GPUs, by augmenting paths.
class GpuMatching {
 public:
  explicit GpuMatching(const std::vector<std::vector<std::string>>& visible) : visible_(visible) {}

  /// \return false when all GPUs that the rank sees belong to ranks that see no other free one
  bool place(std::size_t rank) {
    const auto& seen = visible_[rank];
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const auto& gpu = seen[(rank + i) % seen.size()];
      if (rank_of_.try_emplace(gpu, rank).second) return true;
    }
    asked_.clear();
    return move_others(rank);
  }
  /// \return the number of the rank's GPU in its list; -1: it has none
  int device_of(std::size_t rank) const {
    const auto& seen = visible_[rank];
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const auto found = rank_of_.find(seen[i]);
      if (found != rank_of_.end() && found->second == rank) return static_cast<int>(i);
    }
    return -1;
  }

 private:
  bool move_others(std::size_t rank) {
    for (const auto& gpu : visible_[rank]) {
      if (!asked_.insert(gpu).second) continue;
      const auto found = rank_of_.find(gpu);
      if (found != rank_of_.end() && !move_others(found->second)) continue;
      rank_of_[gpu] = rank;
      return true;
    }
    return false;
  }

  const std::vector<std::vector<std::string>>& visible_;
  std::map<std::string, std::size_t> rank_of_;
  std::set<std::string> asked_;
};

}  // namespace

std::span<const GpuFacts> known_gpus() { return kGpus; }

const GpuFacts& facts_of_gpu(std::string_view device_name, std::int64_t total_bytes, int compute_capability) {
  const auto words = words_of(device_name);
  const auto distance = [&](const GpuFacts& gpu) {
    return std::abs(static_cast<double>(gpu.total_mib) * 1048576.0 - static_cast<double>(total_bytes));
  };
  const GpuFacts* best = nullptr;
  bool best_is_called = false;
  for (const auto& gpu : kGpus) {
    const bool called = is_called(words, gpu);
    if (!called && (best_is_called || gpu.compute_capability != compute_capability)) continue;
    if (best != nullptr && called == best_is_called && distance(gpu) >= distance(*best)) continue;
    best = &gpu;
    best_is_called = called;
  }
  return best != nullptr ? *best : kGpus.front();
}

GpuPeak peak_of_gpu(std::string_view device_name) {
  if (device_name.find("H100 PCIe") != std::string_view::npos) return {756, 51};
  const auto words = words_of(device_name);
  for (const auto& gpu : kGpus) {
    if (is_called(words, gpu)) return gpu.peak;
  }
  return {};
}

std::int64_t parse_bytes(std::string_view text, std::string_view option) {
  const auto plain = lower(text);
  double value = 0;
  const auto end = plain.data() + plain.size();
  const auto [rest, error] = std::from_chars(plain.data(), end, value);
  const double unit = error == std::errc() ? unit_of(std::string(rest, end)) : 0;
  const double bytes = value * unit;
  if (!(bytes >= 0) || bytes > 1e17 || unit == 0) {
    throw RequestError(std::string(option) + " is '" + std::string(text) +
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
    throw RequestError(std::string(option) + " is '" + std::string(text) + "', give 0% to less than 100%, or bytes");
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

GpuSpec find_gpu(std::string_view text, std::string_view option) {
  auto name = lower(text);
  if (name == "a100") name = "a100-40g";
  if (name == "h100-80g" || name == "h100-80gb") name = "h100";
  if (name == "v100") name = "v100-16g";
  if (name.ends_with("gb") && name.find('-') != std::string::npos) name.pop_back();
  for (const auto& gpu : known_gpus()) {
    if (name == gpu.name) return {gpu.name, gpu.total_mib * kMiB, gpu.compute_capability, gpu.multiprocessors};
  }
  if (name.empty() || name[0] < '0' || name[0] > '9') {
    throw RequestError(std::string(option) + " is '" + std::string(text) + "', choose from " + gpu_names() +
                       ", or give bytes (79GiB)");
  }
  GpuSpec gpu;  // unknown model: assumes the kernels of an A100
  gpu.name = std::string(text);
  gpu.total_bytes = parse_bytes(text, option);
  if (gpu.total_bytes < 64 * kMiB)
    throw RequestError(std::string(option) + " " + std::string(text) + " is too little memory for a GPU");
  return gpu;
}

GpuShare share_gpus(const std::vector<std::vector<std::string>>& visible) {
  GpuShare share;
  GpuMatching matching(visible);
  std::set<std::string> all;
  for (std::size_t rank = 0; rank < visible.size(); ++rank) {
    all.insert(visible[rank].begin(), visible[rank].end());
    const bool placed = visible[rank].empty() || matching.place(rank);
    if (!placed && share.first_without < 0) share.first_without = static_cast<int>(rank);
  }
  share.num_gpus = static_cast<int>(all.size());
  for (std::size_t rank = 0; rank < visible.size(); ++rank) {
    const int own = matching.device_of(rank);
    const auto count = std::max<std::size_t>(1, visible[rank].size());
    share.device.push_back(own >= 0 ? own : static_cast<int>(rank % count));
  }
  return share;
}

DeviceOverheads usual_overheads(const GpuSpec& gpu, int communicators, bool several_nodes) {
  DeviceOverheads overheads;
  // Context of a process that loaded libtorch_cuda's kernels lazily, as nvidia-smi shows it beside PyTorch's own
  // "reserved": 0.4 to 0.7 GiB, more on GPUs with more multiprocessors (local memory per thread is set aside). An H100
  // with CUDA 13.0: 687 to 697 MiB, 765 MiB with CUDA graphs.
  overheads.context_bytes = (gpu.compute_capability >= 90 ? 700 : (gpu.compute_capability >= 80 ? 500 : 400)) * kMiB;
  // A communicator's channels, each with a buffer per protocol and connection: 4 MiB (NCCL_BUFFSIZE) for Simple, 4.7
  // for LL128 (120 * 640 * 8 * 8 bytes) and less for LL. A connection receives into 10 MiB and sends from 2. NVLink's
  // switches connect GPUs by 24 channels, so that a ring takes 288 MiB; other ways of a node take some 160, measured.
  // Networks take 80 more.
  constexpr double kSwitched_gb_per_s = 300;  // of A100's NVLink, which boards connect by switches
  const auto& facts = facts_of_gpu(gpu.name, gpu.total_bytes, gpu.compute_capability);
  const std::int64_t of_node = facts.link_gb_per_s >= kSwitched_gb_per_s ? 300 : 180;
  overheads.nccl_bytes = communicators * (of_node + (several_nodes ? 80 : 0)) * kMiB;
  return overheads;
}

}  // namespace fsdp
