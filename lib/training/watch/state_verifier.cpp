#include "lib/training/watch/state_verifier.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/flight/stuck_verdict.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/step/step_interval.hpp"
#include "lib/training/watch/exclude_file.hpp"
#include "lib/training/watch/replica_check.hpp"

namespace fsdp::detail {
namespace {

using Digests = std::vector<std::uint64_t>;

/// A sum over the bits, which no order of additions changes. Parts of a large tensor count by their place.
std::uint64_t digest(const at::Tensor& values) {
  constexpr std::int64_t kPart = std::int64_t{1} << 20;  // the sum of narrow numbers makes a copy
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
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

/// By rank of the group.
std::vector<Digests> gathered(ProcessGroup& ranks, const Digests& local) {
  Digests all(local.size() * static_cast<std::size_t>(ranks.size()));
  const GatherBlock block{std::as_bytes(std::span(local)), std::as_writable_bytes(std::span(all))};
  ranks.all_gather(std::span(&block, 1))->wait();
  std::vector<Digests> by_rank;
  for (auto next = all.begin(); next != all.end(); next += static_cast<std::ptrdiff_t>(local.size()))
    by_rank.emplace_back(next, next + static_cast<std::ptrdiff_t>(local.size()));
  return by_rank;
}

}  // namespace

StateVerifier::StateVerifier(Input input) : input_(std::move(input)) {
  auto& world = input_.runtime.world();
  if (input_.every == 0 || world.size() == 1) return;
  hosts_ = world.gather(host_name(), 0);
  computes_alike_ = every_rank(world, text_of_root(world, [&] { return input_.arithmetic; }) == input_.arithmetic);
  input_.log.info(fmt::format(
      "verify    after every {} the ranks compare parameters, states and decisions, and {}",
      input_.every == 1 ? std::string("step") : fmt::format("{} steps", input_.every),
      computes_alike_ ? "compute a micro-batch of a neighbour: two forward passes"
                      : "nothing that rounding changes, since they round differently: other processors, or other "
                        "numbers of threads"));
}

void StateVerifier::after_step(const StepReport& step, bool) {
  if (input_.every == 0 || input_.runtime.world().size() == 1) return;
  if (!falls_on(step.step, static_cast<double>(input_.every))) return;
  const auto start = std::chrono::steady_clock::now();
  const FlightWork work(input_.runtime.world().recorder(), "verify");
  compare(step);
  verified_step_ = step.step;
  const double seconds = seconds_since(start);
  input_.clock.after_verification(seconds);
  input_.log.info(
      fmt::format("verified  step {} on {} ranks in {:.2f} s", step.step, input_.runtime.world().size(), seconds));
}

void StateVerifier::compare(const StepReport& step) {
  const WithoutAutograd guard;
  auto& runtime = input_.runtime;
  auto& engine = runtime.engine();
  const auto& state = input_.trainer.state();
  const auto& decoder = runtime.decoder();
  const auto name_of = [&](int param) { return decoder.parameters[static_cast<std::size_t>(param)].name; };

  // Each group of the shard axis adds up a norm of its own, and updates copies of its own by it.
  auto& replicas = *runtime.mesh().replicate.ranks;
  const bool has_replicas = replicas.size() > 1;
  const bool copies_are_equal = computes_alike_ || !has_replicas;
  Digests decisions;
  for (const double value : {step.loss, copies_are_equal ? step.grad_norm : 0.0, step.lr, state.loss_scale})
    decisions.push_back(std::bit_cast<std::uint64_t>(value));
  for (const std::int64_t value : {state.step, state.samples, state.optimizer_steps, state.good_steps})
    decisions.push_back(static_cast<std::uint64_t>(value));
  require_equal(
      runtime.world(), decisions,
      {"the step's loss", "the gradient norm", "the learning rate", "the loss scale", "the number of the step",
       "the place in the data", "the optimizer's count of steps", "the count of good steps"});

  Digests copies;
  std::vector<std::string> names;
  for (std::size_t layer = 0; layer <= decoder.layers.size(); ++layer) {
    const auto held = engine.gathered(layer);
    runtime.synchronize();  // a rank that died shows here
    const auto& params =
        layer < decoder.layers.size() ? decoder.layers[layer]->parameters() : decoder.loss->parameters();
    for (std::size_t i = 0; i < params.size(); ++i) {
      copies.push_back(digest(held.params()[i]));
      names.push_back("the gathered " + name_of(params[i]));
    }
  }
  require_equal(copies_are_equal ? runtime.world() : *runtime.mesh().shard.ranks, copies, names);

  if (has_replicas && copies_are_equal) {
    Digests states;
    names.clear();
    for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
      const auto name = name_of(static_cast<int>(i));
      const auto held = engine.shard(i, Access::read);
      states.push_back(digest(held.values()));
      names.push_back("the copy of " + name);
      for (const auto& one : input_.trainer.optimizer().states(i)) {
        states.push_back(digest(one.values.get()));
        names.push_back(fmt::format("the copy of {} of {}", one.key, name));
      }
    }
    require_equal(replicas, states, names);
  }
  if (computes_alike_) compare_with_neighbour();
}

void StateVerifier::require_equal(ProcessGroup& ranks, const Digests& items, const std::vector<std::string>& names) {
  const auto odd = odd_ranks(gathered(ranks, items));
  std::string local;  // the same on all ranks of a group, but not in all groups
  if (!odd.ranks.empty()) {
    std::vector<int> world_ranks;
    for (const int rank : odd.ranks) world_ranks.push_back(ranks.world_rank(rank));
    local = json_text({{"what", names.at(odd.first_item)}, {"ranks", world_ranks}, {"is_sure", odd.has_majority}});
  }
  const auto problem = first_problem(input_.runtime.world(), local);
  if (!problem) return;
  const auto found = parse_json(problem->text, "what a rank found");
  fail(found.at("what"), found.at("ranks"), found.at("is_sure"));
}

void StateVerifier::compare_with_neighbour() {
  const auto& data = input_.runtime.data_ranks();
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  const auto own = bits(input_.trainer.next_loss(data.rank));
  const auto previous = bits(input_.trainer.next_loss((data.rank + data.size - 1) % data.size));
  Digests of_own, of_previous;
  for (const auto& rank : gathered(input_.runtime.world(), {own, previous})) {
    of_own.push_back(rank[0]);
    of_previous.push_back(rank[1]);
  }
  const auto odd = odd_neighbours(of_own, of_previous);
  if (!odd.ranks.empty()) fail("the loss of the same micro-batch", odd.ranks, odd.has_majority);
}

void StateVerifier::fail(const std::string& what, const std::vector<int>& world_ranks, bool is_sure) {
  std::vector<std::string> nodes;
  for (const int rank : world_ranks) {
    const auto place = static_cast<std::size_t>(rank);
    if (place >= hosts_.size()) continue;  // not on rank 0
    if (std::ranges::find(nodes, hosts_[place]) == nodes.end()) nodes.push_back(hosts_[place]);
  }
  if (is_sure) exclude_nodes(input_.exclude_file, nodes, input_.log);
  const auto hosts = input_.runtime.world().broadcast_text(fmt::format("{}", fmt::join(nodes, ", ")), 0);
  const bool is_one = world_ranks.size() == 1;
  throw RuntimeFailure(fmt::format(
      "{} differs between ranks: {} {} ({}) {}; step {} is not saved, {}. Memory, a processor or a GPU, or the network "
      "gives wrong numbers there: check with fsdp-bf16check, and go on elsewhere from a checkpoint that is older",
      what, is_one ? "rank" : "ranks", rank_list(world_ranks), hosts,
      is_sure ? fmt::format("{} not what the others have", is_one ? "has" : "have") : "disagree",
      input_.trainer.state().step,
      verified_step_ == 0 ? std::string("and this job has verified none before")
                          : fmt::format("step {} was the last one to be verified", verified_step_)));
}

}  // namespace fsdp::detail
