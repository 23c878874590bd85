#include "lib/engine/sharding/schedule.hpp"

#include <algorithm>

#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

/// Units in the order in which the forward or the backward needs them, consecutive equal ones once.
/// \param first  lowest layer of the backward
std::vector<int> unit_order(const std::vector<int>& layer_unit, int loss_unit, bool backward, std::ptrdiff_t first) {
  std::vector<int> order;
  const auto add = [&](int unit) {
    if (order.empty() || order.back() != unit) order.push_back(unit);
  };
  if (backward) {
    add(loss_unit);
    for (auto it = layer_unit.rbegin(); it != layer_unit.rend() - first; ++it) add(*it);
  } else {
    for (const int unit : layer_unit) add(unit);
    add(loss_unit);
  }
  return order;
}

class Builder {
 public:
  Builder(const ScheduleInput& input, const EnginePolicy& policy)
      : input_(input), policy_(policy), state_(num_units(), State::sharded) {
    for (std::size_t u = 0; u < input.already_gathered.size(); ++u) {
      if (input.already_gathered[u]) state_[u] = State::gathered;
    }
    for (std::size_t u = 0; u < input.already_coming.size(); ++u) {
      if (input.already_coming[u]) state_[u] = State::coming;
    }
  }

  std::vector<Action> build() {
    forward();
    if (input_.training) {
      backward();
    } else {
      add(ActionKind::loss, 0);
    }
    if (!input_.keep_gathered) {
      for (std::size_t u = 0; u < state_.size(); ++u) reshard(static_cast<int>(u));
    }
    finish_reduces();
    return std::move(actions_);
  }

 private:
  enum class State { sharded, coming, gathered };

  std::size_t num_units() const {
    int top = input_.loss_unit;
    for (const int unit : input_.layer_unit) top = std::max(top, unit);
    return static_cast<std::size_t>(top) + 1;
  }
  State& state(int unit) { return element(state_, unit); }
  void add(ActionKind kind, int index) { actions_.push_back({kind, index}); }

  void start(int unit) {
    if (state(unit) != State::sharded) return;
    add(ActionKind::unshard, unit);
    state(unit) = State::coming;
  }
  void need(int unit) {
    start(unit);
    if (state(unit) != State::coming) return;
    add(ActionKind::wait_for_unshard, unit);
    state(unit) = State::gathered;
  }
  void reshard(int unit) {
    if (state(unit) == State::coming) need(unit);
    if (state(unit) != State::gathered) return;
    add(ActionKind::reshard, unit);
    state(unit) = State::sharded;
  }

  /// Starts all-gathers of the units after index `here` of `order`: only the next one with limit_all_gathers, else all.
  void prefetch(const std::vector<int>& order, std::size_t here) {
    for (std::size_t next = here + 1; next < order.size(); ++next) {
      start(order[next]);
      if (policy_.limit_all_gathers) return;
    }
  }

  bool last_use_forward(std::size_t layer) const {
    const int unit = input_.layer_unit[layer];
    return std::find(iterator_at(input_.layer_unit, layer) + 1, input_.layer_unit.end(), unit) ==
               input_.layer_unit.end() &&
           unit != input_.loss_unit;
  }
  /// True when the backward of the layers below `layer` does not use `unit`. \param layer  layer_unit.size() for the
  /// loss
  bool last_use_backward(int unit, std::size_t layer) const {
    const auto first = input_.layer_unit.begin() + input_.first_backward;
    const auto last = iterator_at(input_.layer_unit, layer);
    return first >= last || std::find(first, last, unit) == last;
  }
  bool backward_uses(int unit) const {
    return unit == input_.loss_unit || !last_use_backward(unit, input_.layer_unit.size());
  }

  void forward() {
    const auto order = unit_order(input_.layer_unit, input_.loss_unit, false, 0);
    std::size_t place = 0;  // index in `order`, in which the root occurs twice
    for (std::size_t s = 0; s < input_.layer_unit.size(); ++s) {
      const int unit = input_.layer_unit[s];
      if (order[place] != unit) ++place;
      need(unit);
      if (policy_.forward_prefetch) prefetch(order, place);
      add(ActionKind::forward, static_cast<int>(s));
      // Evaluation and layers below the first trained one have no backward, so their units can be freed under every
      // sharding strategy.
      const bool passed = !input_.training || !backward_uses(unit);
      const bool free_it = passed ? !input_.keep_gathered : gathers_again_in_backward(policy_.sharding);
      if (last_use_forward(s) && free_it) reshard(unit);
    }
    need(input_.loss_unit);
  }

  void backward() {
    const auto order = unit_order(input_.layer_unit, input_.loss_unit, true, input_.first_backward);
    std::size_t place = 0;
    if (policy_.backward_prefetch == BackwardPrefetch::pre) prefetch(order, place);
    add(ActionKind::loss, 0);
    const auto first = to_index(input_.first_backward);
    if (last_use_backward(input_.loss_unit, input_.layer_unit.size())) finish_backward(input_.loss_unit);
    for (std::size_t i = input_.layer_unit.size(); i-- > first;) {
      const int unit = input_.layer_unit[i];
      if (order[place] != unit) ++place;
      need(unit);
      if (policy_.backward_prefetch == BackwardPrefetch::pre) prefetch(order, place);
      if (input_.checkpointed[i]) add(ActionKind::recompute, static_cast<int>(i));
      add(ActionKind::backward, static_cast<int>(i));
      if (policy_.backward_prefetch == BackwardPrefetch::post) prefetch(order, place);
      if (last_use_backward(unit, i)) finish_backward(unit);
    }
  }

  void finish_backward(int unit) {
    if (!input_.keep_gathered) reshard(unit);
    const auto u = to_index(unit);
    if (u >= input_.frozen.size() || !input_.frozen[u]) reduce(unit);
  }

  /// Finishes reductions one unit late, because by then the other ranks have usually started theirs and no rank waits.
  void reduce(int unit) {
    if (!input_.reduce) return;
    add(ActionKind::start_reduce, unit);
    if (reducing_ >= 0) add(ActionKind::finish_reduce, reducing_);
    reducing_ = unit;
  }
  void finish_reduces() {
    if (reducing_ >= 0) add(ActionKind::finish_reduce, reducing_);
  }

  const ScheduleInput& input_;
  const EnginePolicy& policy_;
  std::vector<State> state_;
  std::vector<Action> actions_;
  int reducing_ = -1;
};

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::unshard:
      return "unshard";
    case ActionKind::wait_for_unshard:
      return "wait_for_unshard";
    case ActionKind::forward:
      return "forward";
    case ActionKind::loss:
      return "loss";
    case ActionKind::recompute:
      return "recompute";
    case ActionKind::backward:
      return "backward";
    case ActionKind::reshard:
      return "reshard";
    case ActionKind::start_reduce:
      return "start_reduce";
    case ActionKind::finish_reduce:
      return "finish_reduce";
  }
  return "?";
}

}  // namespace

std::vector<Action> make_schedule(const ScheduleInput& input, const EnginePolicy& policy) {
  return Builder(input, policy).build();
}

std::string to_string(const std::vector<Action>& actions) {
  std::string text;
  for (const auto& action : actions)
    text += std::string(name_of(action.kind)) + ' ' + std::to_string(action.index) + '\n';
  return text;
}

}  // namespace fsdp
