#include "lib/training/watch/state_verifier.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <utility>

#include "lib/base/types/elapsed.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/training/step/step_interval.hpp"
#include "lib/training/watch/replica_check.hpp"

namespace fsdp::detail {

StateVerifier::StateVerifier(Input input)
    : input_(std::move(input)), wrong_(input_.runtime.world(), input_.log, input_.exclude_file) {
  auto& world = input_.runtime.world();
  if (input_.every == 0 || world.size() == 1) return;
  computes_alike_ = rounds_alike(world, input_.arithmetic);
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

  if (auto* recorder = runtime.world().recorder()) {
    for (auto* ranks : {&runtime.world(), runtime.mesh().shard.ranks.get(), runtime.mesh().replicate.ranks.get()})
      wrong_.require_equal(*ranks, {recorder->collectives_of(ranks->recorded_as())}, {"the list of collectives"},
                           this->state());
  }

  // Each group of the shard axis adds up a norm of its own, and updates copies of its own by it.
  auto& replicas = *runtime.mesh().replicate.ranks;
  const bool has_replicas = replicas.size() > 1;
  const bool copies_are_equal = computes_alike_ || !has_replicas;
  Digests decisions;
  for (const double value : {step.loss, copies_are_equal ? step.grad_norm : 0.0, step.lr, state.loss_scale})
    decisions.push_back(std::bit_cast<std::uint64_t>(value));
  for (const std::int64_t value : {state.step, state.samples, state.optimizer_steps, state.good_steps})
    decisions.push_back(static_cast<std::uint64_t>(value));
  wrong_.require_equal(
      runtime.world(), decisions,
      {"the step's loss", "the gradient norm", "the learning rate", "the loss scale", "the number of the step",
       "the place in the data", "the optimizer's count of steps", "the count of good steps"},
      this->state());

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
  wrong_.require_equal(copies_are_equal ? runtime.world() : *runtime.mesh().shard.ranks, copies, names, this->state());

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
    wrong_.require_equal(replicas, states, names, this->state());
  }
  if (computes_alike_) compare_with_neighbour();
}

void StateVerifier::compare_with_neighbour() {
  const auto& data = input_.runtime.data_ranks();
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  const auto own = bits(input_.trainer.next_loss(data.rank));
  const auto previous = bits(input_.trainer.next_loss((data.rank + data.size - 1) % data.size));
  Digests of_own, of_previous;
  for (const auto& rank : gather_digests(input_.runtime.world(), {own, previous})) {
    of_own.push_back(rank[0]);
    of_previous.push_back(rank[1]);
  }
  const auto odd = odd_neighbours(of_own, of_previous);
  if (odd.ranks.empty()) return;
  wrong_.fail({"the loss of the same micro-batch differs between ranks", odd.ranks, odd.has_majority, odd.how()},
              state());
}

std::string StateVerifier::state() const {
  return fmt::format("step {} is not saved, {}", input_.trainer.state().step,
                     verified_step_ == 0 ? std::string("and this job has verified none before")
                                         : fmt::format("step {} was the last one to be verified", verified_step_));
}

}  // namespace fsdp::detail
