#include "lib/bf16/rank_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/median.hpp"

namespace fsdp::detail {
namespace {

/// GPUs with bf16 units are at least twice as fast in bf16 as in float32, even with TF32; GPUs without them are slower
/// in bf16 than in float32.
constexpr double kEmulatedRatio = 1.3;
/// Fraction of the other ranks' median speed below which a rank counts as throttled.
constexpr double kThrottledRatio = 0.5;
constexpr double kSlowGpu = 0.7;
constexpr double kSlowProcessor = 0.5;  // lower limit for processors, because other programs may share their cores
constexpr double kSlowLink = 0.5;

/// A property that should be equal on all ranks.
struct Trait {
  const char* name;
  std::string (*of)(const RankFacts&);
};
constexpr std::array<Trait, 5> kTraits{{
    {"device", [](const RankFacts& r) { return r.device(); }},
    {"CUDA driver", [](const RankFacts& r) { return r.gpu ? to_text(r.gpu->driver) : "none"; }},
    {"CUDA runtime", [](const RankFacts& r) { return r.gpu ? to_text(r.gpu->runtime) : "none"; }},
    {"NCCL", [](const RankFacts& r) { return r.gpu ? to_text(r.gpu->nccl) : "none"; }},
    {"bf16 code", [](const RankFacts& r) { return r.gemm.implementation.empty() ? "none" : r.gemm.implementation; }},
}};

/// \return the most frequent value among the ranks; on a tie, the one that belongs to the lowest rank
std::string most_common(const std::vector<RankFacts>& ranks, const Trait& trait) {
  std::map<std::string, int> count;
  for (const auto& rank : ranks) ++count[trait.of(rank)];
  std::string best;
  int most = 0;
  for (const auto& rank : ranks) {
    auto text = trait.of(rank);
    if (const int n = count[text]; n > most) {
      most = n;
      best = std::move(text);
    }
  }
  return best;
}

bool like(const RankFacts& a, const RankFacts& b) {
  return a.gpu.has_value() == b.gpu.has_value() && a.device() == b.device();
}

bool is_slice(const DeviceInfo& gpu) { return gpu.name.find("MIG ") != std::string::npos; }

/// Recognises oneDNN's x86 implementations only; the names for other processors are unknown.
bool uses_bf16_instructions(const std::string& implementation) {
  for (const char* part : {"core_bf16", "core_fp16", "amx", "avx10", "avx2_vnni_2"}) {
    if (implementation.find(part) != std::string::npos) return true;
  }
  return false;
}

double best_pair(const RankFacts& r) {
  double best = 0;
  for (const auto& pair : r.pairs) best = std::max(best, pair.bus_gb_per_s);
  return best;
}

}  // namespace

int rank_on_same_gpu(const std::vector<const RankFacts*>& ranks, const RankFacts& own) {
  if (!own.gpu) return -1;
  for (const auto* other : ranks) {
    if (other->rank != own.rank && other->gpu && other->node == own.node &&
        other->gpu->pci_bus_id == own.gpu->pci_bus_id && other->gpu->uuid == own.gpu->uuid) {
      return other->rank;
    }
  }
  return -1;
}

RankComparison::RankComparison(const std::vector<RankFacts>& ranks) {
  std::set<int> seen;
  for (const auto& rank : ranks) {
    ranks_.push_back(&rank);
    if (seen.insert(rank.node).second) nodes_.push_back(&rank);
  }
  for (const auto& trait : kTraits) usual_.push_back(most_common(ranks, trait));
}

void RankComparison::compare(std::size_t self, RankAnswer& answer) const {
  const auto& own = *ranks_[self];
  judge_speed(own, answer);
  judge_links(own, answer);
  note_libraries(own, answer);
  note_differences(own, answer);
}

/// \return the median over `among` without `self`, ignoring values of 0; 0 when no value is left
template <typename Value>
double RankComparison::median_of_others(const std::vector<const RankFacts*>& among, const RankFacts& self,
                                        const Value& value) const {
  std::vector<double> values;
  for (const auto* other : among) {
    if (other == &self) continue;
    if (const double v = value(*other); v > 0) values.push_back(v);
  }
  if (values.empty()) return 0;
  const auto middle = iterator_at(values, values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void RankComparison::judge_speed(const RankFacts& own, RankAnswer& answer) const {
  const double ratio = own.gemm.ratio();
  if (ratio <= 0) return;
  const auto note = [&](std::string text) { answer.notes.push_back(std::move(text)); };
  const bool native = answer.bf16.verdict == Bf16Verdict::native;
  if (own.gpu && native) {
    const double others =
        median_of_others(ranks_, own, [&](const RankFacts& r) { return like(r, own) ? r.gemm.ratio() : 0; });
    if (ratio < kEmulatedRatio) {
      answer.bf16 = {
          Bf16Verdict::emulated,
          fmt::format("measured: bf16 only {:.2f} times as fast as float32, although {}", ratio, answer.bf16.reason)};
    } else if (ratio < kThrottledRatio * others) {
      answer.bf16 = {Bf16Verdict::emulated,
                     fmt::format("measured: bf16 {:.1f} times as fast as float32, {:.1f} times on the other ranks' {}: "
                                 "throttled or partly emulated",
                                 ratio, others, own.gpu->name)};
    }
  }
  if (const auto& code = own.gemm.implementation;
      !own.gpu && native && !code.empty() && !own.processor.arm_bf16 && !uses_bf16_instructions(code)) {
    note(fmt::format("oneDNN does not use the processor's bf16 instructions (it took {}; ONEDNN_MAX_CPU_ISA?)", code));
  }
  if (!own.gpu && native && ratio < 1) {
    note(fmt::format("bf16 is slower than float32 here ({:.2f} times its speed)", ratio));
  }
  if (!own.gpu && answer.bf16.verdict == Bf16Verdict::emulated && ratio > kEmulatedRatio) {
    note(fmt::format("bf16 is {:.1f} times as fast as float32 all the same", ratio));
  }
  const double others =
      median_of_others(ranks_, own, [&](const RankFacts& r) { return like(r, own) ? r.gemm.bf16_tflops : 0; });
  if (own.gemm.bf16_tflops < (own.gpu ? kSlowGpu : kSlowProcessor) * others) {
    answer.slow = true;
    note(fmt::format("slow: {:.3g} bf16 TFLOP/s, the others' median is {:.3g}", own.gemm.bf16_tflops, others));
  }
}

/// A node with slow links makes all its ranks slow.
void RankComparison::judge_links(const RankFacts& own, RankAnswer& answer) const {
  const auto& node = **std::find_if(nodes_.begin(), nodes_.end(), [&](const auto* n) { return n->node == own.node; });
  const auto check = [&](const char* where, const auto& value) {
    const double speed = value(node);
    const double others = median_of_others(nodes_, node, value);
    if (speed <= 0 || speed >= kSlowLink * others) return;
    answer.slow = true;
    answer.notes.push_back(
        fmt::format("slow node: {:.3g} GB/s {}, the other nodes' median is {:.3g}", speed, where, others));
  };
  check("inside the node", [&](const RankFacts& r) {
    return r.node_reduce.ranks == node.node_reduce.ranks ? r.node_reduce.bus_gb_per_s : 0;
  });
  // A node with a slow link is slow with each of its neighbours, whereas its neighbours have another, fast pair.
  check("to its neighbours", best_pair);
}

void RankComparison::note_libraries(const RankFacts& own, RankAnswer& answer) const {
  if (!own.gpu) return;
  const auto& gpu = *own.gpu;
  const auto note = [&](std::string text) { answer.notes.push_back(std::move(text)); };
  if (gpu.nccl != gpu.nccl_built && gpu.nccl != LibraryVersion{}) {
    note(fmt::format("NCCL {} runs, {} was compiled against", to_text(gpu.nccl), to_text(gpu.nccl_built)));
  }
  if (gpu.driver < gpu.runtime) {
    note(fmt::format("the driver is for CUDA {}, the runtime is {}: works within one major version only",
                     to_text(gpu.driver), to_text(gpu.runtime)));
  }
  if (is_slice(gpu)) note("a slice of a GPU (MIG): NCCL cannot join slices of one GPU");
  if (const int other = rank_on_same_gpu(ranks_, own); other >= 0) {
    note(fmt::format("shares GPU {} with rank {}: sums went through the host, not NCCL", gpu.pci_bus_id, other));
  }
}

void RankComparison::note_differences(const RankFacts& own, RankAnswer& answer) const {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (const auto here = kTraits[i].of(own); here != usual_[i]) {
      answer.notes.push_back(fmt::format("its {} differs: {}, most ranks have {}", kTraits[i].name, here, usual_[i]));
    }
  }
}

}  // namespace fsdp::detail
