#include "lib/training/watch/wrong_ranks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/flight/stuck_verdict.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/watch/exclude_file.hpp"
#include "lib/training/watch/replica_check.hpp"

namespace fsdp::detail {

std::uint64_t digest(const at::Tensor& values) {
  constexpr std::int64_t kPart = std::int64_t{1} << 20;  // the sum of narrow numbers makes a copy
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;  // parts of a large tensor count by their place
  const auto size = values.element_size();
  const auto type = size == 8 ? at::kLong : size == 4 ? at::kInt : size == 2 ? at::kShort : at::kChar;
  const auto bits = values.contiguous().view(type).reshape({-1});
  std::uint64_t sum = 0;
  for (std::int64_t begin = 0; begin < bits.numel(); begin += kPart) {
    const auto part = bits.narrow(0, begin, std::min(kPart, bits.numel() - begin)).sum(at::kLong);
    sum = sum * kFactor + static_cast<std::uint64_t>(part.item<std::int64_t>());
  }
  return sum;
}

std::vector<Digests> gather_digests(ProcessGroup& ranks, const Digests& local) {
  Digests all(local.size() * static_cast<std::size_t>(ranks.size()));
  const GatherBlock block{std::as_bytes(std::span(local)), std::as_writable_bytes(std::span(all))};
  ranks.all_gather(std::span(&block, 1))->wait();
  std::vector<Digests> by_rank;
  for (auto next = all.begin(); next != all.end(); next += static_cast<std::ptrdiff_t>(local.size()))
    by_rank.emplace_back(next, next + static_cast<std::ptrdiff_t>(local.size()));
  return by_rank;
}

bool rounds_alike(ProcessGroup& world, const std::string& arithmetic) {
  return every_rank(world, text_of_root(world, [&] { return arithmetic; }) == arithmetic);
}

WrongRanks::WrongRanks(ProcessGroup& world, const Logger& log, std::filesystem::path exclude_file)
    : world_(world), log_(log), exclude_file_(std::move(exclude_file)) {}

void WrongRanks::require_none(const std::optional<WrongNumbers>& local, const std::string& state) const {
  std::string text;
  if (local) {
    text =
        json_text({{"what", local->what}, {"ranks", local->ranks}, {"is_sure", local->is_sure}, {"how", local->how}});
  }
  const auto problem = first_problem(world_, text);
  if (!problem) return;
  const auto found = parse_json(problem->text, "what a rank found");
  fail({found.at("what"), found.at("ranks"), found.at("is_sure"), found.at("how")}, state);
}

void WrongRanks::fail(const WrongNumbers& found, const std::string& state) const {
  const auto hosts = world_.gather(host_name(), 0);
  std::vector<std::string> nodes;
  for (const int rank : found.ranks) {
    const auto place = static_cast<std::size_t>(rank);
    if (place >= hosts.size()) continue;  // not on rank 0
    if (std::ranges::find(nodes, hosts[place]) == nodes.end()) nodes.push_back(hosts[place]);
  }
  if (found.is_sure) exclude_nodes(exclude_file_, nodes, log_);
  const auto where = world_.broadcast_text(fmt::format("{}", fmt::join(nodes, ", ")), 0);
  throw RuntimeFailure(fmt::format(
      "{}: {} {} ({}) {}; {}. Memory, a processor or a GPU, or the network gives wrong numbers there: check with "
      "fsdp-bf16check, and go on elsewhere from a checkpoint that is older",
      found.what, found.ranks.size() == 1 ? "rank" : "ranks", rank_list(found.ranks), where, found.how, state));
}

void WrongRanks::require_equal(ProcessGroup& ranks, const Digests& local, const std::vector<std::string>& names,
                               const std::string& state) const {
  const auto odd = odd_ranks(gather_digests(ranks, local));
  std::optional<WrongNumbers> found;  // the same on all ranks of a group, but not in all groups
  if (!odd.ranks.empty()) {
    found = WrongNumbers{names.at(odd.first_item) + " differs between ranks", {}, odd.has_majority, odd.how()};
    for (const int rank : odd.ranks) found->ranks.push_back(ranks.world_rank(rank));
  }
  require_none(found, state);
}

}  // namespace fsdp::detail
