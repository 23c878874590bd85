#include "apps/bf16check/bf16_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/index.hpp"

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

/// The slowest and the fastest rank of each kind of copy that was measured.
std::string bandwidth_lines(const std::vector<RankFacts>& ranks) {
  struct Kind {
    const char* name;
    double BandwidthFacts::*field;
  };
  std::string text;
  for (const auto& [name, field] :
       {Kind{"memory", &BandwidthFacts::copy_gb_per_s}, Kind{"host to GPU", &BandwidthFacts::to_device_gb_per_s},
        Kind{"GPU to host", &BandwidthFacts::from_device_gb_per_s}}) {
    const auto [slowest, fastest] = std::minmax_element(ranks.begin(), ranks.end(), [&](const auto& a, const auto& b) {
      return a.bandwidth.*field < b.bandwidth.*field;
    });
    if (!(fastest->bandwidth.*field > 0)) continue;
    text += fmt::format("{:<14} {} on rank {}", name, speed(slowest->bandwidth.*field), slowest->rank);
    if (ranks.size() > 1)
      text += fmt::format(" (the slowest) to {} on rank {}", speed(fastest->bandwidth.*field), fastest->rank);
    text += "\n";
  }
  return text;
}

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
  const auto transfer = [&](const char* name, TransferFacts RankFacts::*facts) {
    if (first.job_reduce.ranks <= 1 || (first.*facts).bytes == 0) return;
    const auto faulty =
        std::find_if(ranks.begin(), ranks.end(), [&](const auto& r) { return !(r.*facts).wrong.empty(); });
    text += fmt::format(
        "{:<14} {} of bf16 over {} ranks: {}, bus bandwidth {}\n", name,
        format_bytes(static_cast<double>((first.*facts).bytes)), sum.ranks,
        faulty == ranks.end() ? "exact" : fmt::format("WRONG on rank {}: {}", faulty->rank, ((*faulty).*facts).wrong),
        speed((first.*facts).bus_gb_per_s));
  };
  constexpr int kManyRanks = 64;
  if (sum.sums_in == "bf16" && sum.ranks > kManyRanks) {
    text += "               each step of that sum rounds to 8 bits: train with --reduce-dtype float32\n";
  }
  transfer("all-gather", &RankFacts::gather);
  transfer("reduce-scatter", &RankFacts::scatter);
  text += bandwidth_lines(ranks);
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
    for (const auto& counter : ranks[i].counters) {
      if (counter.after > counter.before)
        text += fmt::format("rank {} on {}: {}: {:.0f}, and {:.0f} after the check\n", ranks[i].rank, ranks[i].host,
                            counter.name, counter.before, counter.after);
    }
  }
  text += link_lines(ranks);
  if (answer.slowest_rank >= 0 && ranks.size() > 1) {
    const auto& slowest = element(ranks, answer.slowest_rank);
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
  const auto add_transfer = [&](const char* key, TransferFacts RankFacts::*facts) {
    if (ranks.empty()) return;
    const bool is_exact =
        std::all_of(ranks.begin(), ranks.end(), [&](const auto& r) { return (r.*facts).wrong.empty(); });
    const bool is_made = ranks.size() < 2 || (ranks.front().*facts).bytes > 0;
    report[key] = {{"exact", is_made ? json(is_exact) : json(nullptr)},
                   {"bytes", (ranks.front().*facts).bytes},
                   {"bus_gb_per_s", (ranks.front().*facts).bus_gb_per_s}};
  };
  add_transfer("all_gather", &RankFacts::gather);
  add_transfer("reduce_scatter", &RankFacts::scatter);
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
