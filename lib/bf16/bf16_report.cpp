#include "lib/bf16/bf16_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lib/base/text_format.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

constexpr std::size_t kColumns = 8;
using Row = std::array<std::string, kColumns>;

std::string number(double value) { return value > 0 ? fmt::format("{:.3g}", value) : "-"; }

/// Formats a table: all columns but the last are padded, numbers are right-aligned.
std::string lines_of(const std::vector<Row>& rows) {
  constexpr std::array<bool, kColumns> kRight{true, false, false, false, true, true, true, false};
  std::array<std::size_t, kColumns> width{};
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < kColumns; ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c + 1 < kColumns; ++c) {
      text += kRight[c] ? fmt::format("{:>{}}  ", row[c], width[c]) : fmt::format("{:<{}}  ", row[c], width[c]);
    }
    text += row.back() + "\n";
  }
  return text;
}

/// \return the first rank of each node, in the order of nodes
std::vector<const RankFacts*> nodes_of(const std::vector<RankFacts>& ranks) {
  std::vector<const RankFacts*> nodes;
  std::set<int> seen;
  for (const auto& rank : ranks) {
    if (seen.insert(rank.node).second) nodes.push_back(&rank);
  }
  return nodes;
}

/// \return the transports that the ranks report, without duplicates
template <typename Pick>
std::string transports(const std::vector<RankFacts>& ranks, const Pick& pick) {
  std::vector<std::string> all;
  for (const auto& rank : ranks) {
    const auto& text = pick(rank).transport;
    if (!text.empty() && std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

std::string in_parentheses(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

/// Describes errors in the sums over all ranks; "" when there are none.
std::string wrong_sums(const std::vector<RankFacts>& ranks) {
  for (const auto& rank : ranks) {
    const auto& sum = rank.job_reduce;
    if (!sum.failure.empty()) return fmt::format("failed on rank {}: {}", rank.rank, sum.failure);
    if (!sum.wrong.empty()) return fmt::format("WRONG on rank {}: {}", rank.rank, sum.wrong);
  }
  return "";
}

std::string speed(double gb_per_s) { return gb_per_s > 0 ? fmt::format("{:.3g} GB/s", gb_per_s) : "not measured"; }

std::string link_lines(const std::vector<RankFacts>& ranks) {
  if (ranks.empty()) return "";
  const auto& first = ranks.front();
  std::string text;
  const auto wrong = wrong_sums(ranks);
  const auto& sum = first.job_reduce;
  if (first.job_reduce.ranks > 1) {
    text += fmt::format("all-reduce     {} of bf16 over {} ranks: {}{}, bus bandwidth {}{}\n",
                        format_bytes(static_cast<double>(sum.bytes)), sum.ranks, wrong.empty() ? "exact" : wrong,
                        sum.sums_in.empty() ? "" : ", sums in " + sum.sums_in, speed(sum.bus_gb_per_s),
                        in_parentheses(transports(
                            ranks, [](const auto& r) -> const auto& { return r.job_reduce; })));
  }
  constexpr int kManyRanks = 64;
  if (sum.sums_in == "bf16" && sum.ranks > kManyRanks) {
    text += "               each step of that sum rounds to 8 bits: train with --reduce-dtype float32\n";
  }
  const auto nodes = nodes_of(ranks);
  std::vector<std::string> inside;
  for (const auto* node : nodes) {
    if (nodes.size() > 1 && node->node_reduce.ranks > 1)
      inside.push_back(node->host + " " + speed(node->node_reduce.bus_gb_per_s));
  }
  if (!inside.empty()) {
    text += fmt::format("inside nodes   {}{}\n", fmt::join(inside, ", "),
                        in_parentheses(transports(
                            ranks, [](const auto& r) -> const auto& { return r.node_reduce; })));
  }
  if (nodes.size() > 1) {
    text += fmt::format("between nodes  {} over the first ranks of {} nodes{}\n",
                        speed(nodes.front()->across_reduce.bus_gb_per_s), nodes.size(),
                        in_parentheses(transports(
                            ranks, [](const auto& r) -> const auto& { return r.across_reduce; })));
  }
  for (const auto* node : nodes) {
    for (const auto& pair : node->pairs) {
      if (node->host < pair.other_host) {
        text += fmt::format("  {} - {}  {}\n", node->host, pair.other_host, speed(pair.bus_gb_per_s));
      }
    }
  }
  return text;
}

}  // namespace

std::string bf16_table(const std::vector<RankFacts>& ranks, const JobAnswer& answer) {
  std::vector<Row> rows{{"rank", "host", "device", "verdict", "bf16/fp32", "TFLOP/s", "node GB/s", "reason"}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& r = ranks[i];
    const auto& a = answer.ranks[i];
    rows.push_back({std::to_string(r.rank), r.host, r.device(),
                    std::string(to_text(a.bf16.verdict)) + (a.slow ? ", slow" : ""), number(r.gemm.ratio()),
                    number(r.gemm.bf16_tflops), number(r.node_reduce.bus_gb_per_s), a.bf16.reason});
  }
  std::string text = lines_of(rows);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (const auto& note : answer.ranks[i].notes) {
      text += fmt::format("rank {} on {}: {}\n", ranks[i].rank, ranks[i].host, note);
    }
  }
  text += link_lines(ranks);
  if (answer.slowest_rank >= 0 && ranks.size() > 1) {
    const auto& slowest = ranks[static_cast<std::size_t>(answer.slowest_rank)];
    text += fmt::format("slowest        rank {} on {}: {:.3g} bf16 TFLOP/s\n", slowest.rank, slowest.host,
                        slowest.gemm.bf16_tflops);
  }
  if (!answer.bad_hosts.empty()) text += fmt::format("bad hosts      {}\n", fmt::join(answer.bad_hosts, ","));
  return text + fmt::format("bf16 is        {}\n", to_text(answer.verdict));
}

json bf16_json(const std::vector<RankFacts>& ranks, const JobAnswer& answer) {
  json list = json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& a = answer.ranks[i];
    json rank = to_json(ranks[i]);
    rank["device"] = ranks[i].device();
    rank["device_type"] = ranks[i].gpu ? "cuda" : "cpu";
    rank["verdict"] = to_text(a.bf16.verdict);
    rank["reason"] = a.bf16.reason;
    rank["slow"] = a.slow;
    rank["bad"] = a.bad();
    rank["notes"] = a.notes;
    rank["gemm"]["ratio"] = ranks[i].gemm.ratio();
    list.push_back(std::move(rank));
  }
  json inside = json::array();
  json pairs = json::array();
  const auto nodes = nodes_of(ranks);
  for (const auto* node : nodes) {
    inside.push_back({{"host", node->host},
                      {"ranks", node->node_reduce.ranks},
                      {"bus_gb_per_s", node->node_reduce.bus_gb_per_s},
                      {"transport", node->node_reduce.transport}});
    for (const auto& pair : node->pairs) {
      if (node->host < pair.other_host) {
        pairs.push_back({{"hosts", {node->host, pair.other_host}}, {"bus_gb_per_s", pair.bus_gb_per_s}});
      }
    }
  }
  json report{{"verdict", to_text(answer.verdict)},
              {"world_size", ranks.size()},
              {"nodes", nodes.size()},
              {"ranks", list},
              {"inside_nodes", inside},
              {"between_nodes", nullptr},
              {"slowest_rank", answer.slowest_rank},
              {"bad_hosts", answer.bad_hosts}};
  if (!ranks.empty()) {
    const auto& sum = ranks.front().job_reduce;
    report["all_reduce"] = {{"exact", wrong_sums(ranks).empty()},
                            {"ranks", sum.ranks},
                            {"bytes", sum.bytes},
                            {"bus_gb_per_s", sum.bus_gb_per_s},
                            {"sums_in", sum.sums_in},
                            {"transport", transports(
                                              ranks, [](const auto& r) -> const auto& { return r.job_reduce; })}};
  }
  if (nodes.size() > 1) {
    const auto& across = nodes.front()->across_reduce;
    report["between_nodes"] = {{"nodes", nodes.size()},
                               {"bytes", across.bytes},
                               {"bus_gb_per_s", across.bus_gb_per_s},
                               {"transport", across.transport},
                               {"pairs", pairs}};
  }
  return report;
}

std::string exclude_list(const JobAnswer& answer) {
  if (answer.bad_hosts.empty()) return "";
  return fmt::format("{}\n", fmt::join(answer.bad_hosts, ","));
}

}  // namespace fsdp

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

int rank_on_same_gpu(const std::vector<const RankFacts*>& ranks, const RankFacts& mine) {
  if (!mine.gpu) return -1;
  for (const auto* other : ranks) {
    if (other->rank != mine.rank && other->gpu && other->node == mine.node &&
        other->gpu->pci_bus_id == mine.gpu->pci_bus_id && other->gpu->uuid == mine.gpu->uuid) {
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
  const auto& mine = *ranks_[self];
  judge_speed(mine, answer);
  judge_links(mine, answer);
  note_libraries(mine, answer);
  note_differences(mine, answer);
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
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void RankComparison::judge_speed(const RankFacts& mine, RankAnswer& answer) const {
  const double ratio = mine.gemm.ratio();
  if (ratio <= 0) return;
  const auto note = [&](std::string text) { answer.notes.push_back(std::move(text)); };
  const bool native = answer.bf16.verdict == Bf16Verdict::native;
  if (mine.gpu && native) {
    const double others =
        median_of_others(ranks_, mine, [&](const RankFacts& r) { return like(r, mine) ? r.gemm.ratio() : 0; });
    if (ratio < kEmulatedRatio) {
      answer.bf16 = {
          Bf16Verdict::emulated,
          fmt::format("measured: bf16 only {:.2f} times as fast as float32, although {}", ratio, answer.bf16.reason)};
    } else if (ratio < kThrottledRatio * others) {
      answer.bf16 = {Bf16Verdict::emulated,
                     fmt::format("measured: bf16 {:.1f} times as fast as float32, {:.1f} times on the other ranks' {}: "
                                 "throttled or partly emulated",
                                 ratio, others, mine.gpu->name)};
    }
  }
  if (const auto& code = mine.gemm.implementation;
      !mine.gpu && native && !code.empty() && !mine.processor.arm_bf16 && !uses_bf16_instructions(code)) {
    note(fmt::format("oneDNN does not use the processor's bf16 instructions (it took {}; ONEDNN_MAX_CPU_ISA?)", code));
  }
  if (!mine.gpu && native && ratio < 1) {
    note(fmt::format("bf16 is slower than float32 here ({:.2f} times its speed)", ratio));
  }
  if (!mine.gpu && answer.bf16.verdict == Bf16Verdict::emulated && ratio > kEmulatedRatio) {
    note(fmt::format("bf16 is {:.1f} times as fast as float32 all the same", ratio));
  }
  const double others =
      median_of_others(ranks_, mine, [&](const RankFacts& r) { return like(r, mine) ? r.gemm.bf16_tflops : 0; });
  if (mine.gemm.bf16_tflops < (mine.gpu ? kSlowGpu : kSlowProcessor) * others) {
    answer.slow = true;
    note(fmt::format("slow: {:.3g} bf16 TFLOP/s, the others' median is {:.3g}", mine.gemm.bf16_tflops, others));
  }
}

/// A node with slow links makes all its ranks slow.
void RankComparison::judge_links(const RankFacts& mine, RankAnswer& answer) const {
  const auto& node = **std::find_if(nodes_.begin(), nodes_.end(), [&](const auto* n) { return n->node == mine.node; });
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

void RankComparison::note_libraries(const RankFacts& mine, RankAnswer& answer) const {
  if (!mine.gpu) return;
  const auto& gpu = *mine.gpu;
  const auto note = [&](std::string text) { answer.notes.push_back(std::move(text)); };
  if (gpu.nccl != gpu.nccl_built && gpu.nccl != LibraryVersion{}) {
    note(fmt::format("NCCL {} runs, {} was compiled against", to_text(gpu.nccl), to_text(gpu.nccl_built)));
  }
  if (gpu.driver < gpu.runtime) {
    note(fmt::format("the driver is for CUDA {}, the runtime is {}: works within one major version only",
                     to_text(gpu.driver), to_text(gpu.runtime)));
  }
  if (is_slice(gpu)) note("a slice of a GPU (MIG): NCCL cannot join slices of one GPU");
  if (const int other = rank_on_same_gpu(ranks_, mine); other >= 0) {
    note(fmt::format("shares GPU {} with rank {}: sums went through the host, not NCCL", gpu.pci_bus_id, other));
  }
}

void RankComparison::note_differences(const RankFacts& mine, RankAnswer& answer) const {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (const auto here = kTraits[i].of(mine); here != usual_[i]) {
      answer.notes.push_back(fmt::format("its {} differs: {}, most ranks have {}", kTraits[i].name, here, usual_[i]));
    }
  }
}

}  // namespace fsdp::detail
