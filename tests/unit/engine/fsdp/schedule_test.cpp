#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "lib/engine/sharding/schedule.hpp"

using namespace fsdp;

namespace {

/// Returns one letter and number per action: S/G start and finish a gather, F forward, L loss, C recompute, B backward,
/// R reshard, s/r start and finish a reduction.
std::string compact(const std::vector<Action>& actions) {
  std::string text;
  for (const auto& action : actions) {
    if (!text.empty()) text += ' ';
    text += "SGFLCBRsr"[static_cast<int>(action.kind)];
    text += std::to_string(action.index);
  }
  return text;
}

/// Returns the schedule's input for embedding, two blocks and head.
ScheduleInput two_blocks() {
  ScheduleInput input;
  input.layer_unit = {0, 1, 2};
  input.checkpointed = {false, false, false};
  input.already_gathered = {false, false, false};
  return input;
}

EnginePolicy policy_of(Sharding sharding, BackwardPrefetch prefetch) {
  EnginePolicy policy;
  policy.sharding = sharding;
  policy.backward_prefetch = prefetch;
  return policy;
}

/// Checks the rules that hold for every schedule.
class Checker {
 public:
  Checker(const ScheduleInput& input, const EnginePolicy& policy) : input_(input), policy_(policy) {
    for (std::size_t u = 0; u < input.already_gathered.size(); ++u) state_.push_back(input.already_gathered[u] ? 2 : 0);
    kept_ = static_cast<int>(std::count(input.already_gathered.begin(), input.already_gathered.end(), true));
  }

  void run(const std::vector<Action>& actions) {
    for (const auto& action : actions) see(action);
    const auto layers = static_cast<int>(input_.layer_unit.size());
    REQUIRE(forward_ == layers);
    REQUIRE(losses_ == 1);
    REQUIRE(backward_ == (input_.training ? input_.first_backward : layers));
    for (const int state : state_) REQUIRE(state == (input_.keep_gathered ? 2 : 0));
    const bool reduces = input_.training && input_.reduce;
    REQUIRE(reduced_.size() == (reduces ? trained_units() : 0u));
    REQUIRE(open_reduces_.empty());
    REQUIRE(gathers_ == expected_gathers());
    const bool frees = !input_.keep_gathered && (gathers_again_in_backward(policy_.sharding) || !input_.training);
    if (policy_.limit_all_gathers && frees && kept_ == 0) REQUIRE(most_blocks_ <= 2);
  }

 private:
  int expected_gathers() const {
    const auto units = static_cast<int>(state_.size());
    if (!input_.training || !gathers_again_in_backward(policy_.sharding)) return units - kept_;
    std::set<int> again(input_.layer_unit.begin() + input_.first_backward, input_.layer_unit.end());
    again.erase(input_.loss_unit);  // the root stays gathered
    return units + static_cast<int>(again.size());
  }
  std::size_t trained_units() const {
    return state_.size() - static_cast<std::size_t>(std::count(input_.frozen.begin(), input_.frozen.end(), true));
  }
  int unit(int layer) const { return input_.layer_unit[static_cast<std::size_t>(layer)]; }
  int& state(int u) { return state_[static_cast<std::size_t>(u)]; }

  void see(const Action& action) {
    switch (action.kind) {
      case ActionKind::unshard:
        REQUIRE(state(action.index) == 0);
        state(action.index) = 1;
        ++gathers_;
        break;
      case ActionKind::wait_for_unshard:
        REQUIRE(state(action.index) == 1);
        state(action.index) = 2;
        break;
      case ActionKind::reshard:
        REQUIRE(state(action.index) == 2);
        state(action.index) = 0;
        break;
      case ActionKind::forward:
        REQUIRE(action.index == forward_++);
        REQUIRE(losses_ == 0);
        REQUIRE(state(unit(action.index)) == 2);
        backward_ = forward_;
        break;
      case ActionKind::loss:
        REQUIRE(forward_ == static_cast<int>(input_.layer_unit.size()));
        REQUIRE(state(input_.loss_unit) == 2);
        ++losses_;
        break;
      case ActionKind::recompute:
        REQUIRE(input_.checkpointed[static_cast<std::size_t>(action.index)]);
        REQUIRE(action.index == backward_ - 1);
        REQUIRE(state(unit(action.index)) == 2);
        recomputed_ = action.index;
        break;
      case ActionKind::backward:
        REQUIRE(input_.training);
        REQUIRE(losses_ == 1);
        REQUIRE(action.index == --backward_);
        REQUIRE(state(unit(action.index)) == 2);
        REQUIRE((!input_.checkpointed[static_cast<std::size_t>(action.index)] || recomputed_ == action.index));
        REQUIRE(reduced_.count(unit(action.index)) == 0);  // its gradients may still change
        REQUIRE(open_reduces_.size() <= 1);                // two gradient buffers are enough
        break;
      case ActionKind::start_reduce:
        REQUIRE(reduced_.insert(action.index).second);
        for (int s = input_.first_backward; s < backward_; ++s) REQUIRE(unit(s) != action.index);
        REQUIRE((input_.frozen.empty() || !input_.frozen[static_cast<std::size_t>(action.index)]));
        open_reduces_.push_back(action.index);
        break;
      case ActionKind::finish_reduce:
        REQUIRE(!open_reduces_.empty());
        REQUIRE(open_reduces_.front() == action.index);
        open_reduces_.erase(open_reduces_.begin());
        break;
    }
    most_blocks_ = std::max(
        most_blocks_, static_cast<int>(std::count_if(state_.begin() + 1, state_.end(), [](int s) { return s > 0; })));
  }

  const ScheduleInput& input_;
  const EnginePolicy& policy_;
  std::vector<int> state_;  // 0 sharded, 1 coming, 2 gathered
  std::vector<int> open_reduces_;
  std::set<int> reduced_;
  int kept_ = 0, gathers_ = 0, forward_ = 0, backward_ = 0, losses_ = 0, recomputed_ = -1, most_blocks_ = 0;
};

}  // namespace

TEST_SUITE("fsdp/schedule") {
  TEST_CASE("make_schedule: full-shard without prefetch") {
    CHECK(compact(make_schedule(two_blocks(), policy_of(Sharding::full_shard, BackwardPrefetch::none))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 L0 "
          "S2 G2 B2 R2 s2 S1 G1 B1 R1 s1 r2 B0 R0 s0 r1 r0");
  }

  TEST_CASE("make_schedule: full-shard, prefetch before or after a unit's backward") {
    CHECK(compact(make_schedule(two_blocks(), policy_of(Sharding::full_shard, BackwardPrefetch::pre))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 S2 L0 "
          "G2 S1 B2 R2 s2 G1 B1 R1 s1 r2 B0 R0 s0 r1 r0");
    CHECK(compact(make_schedule(two_blocks(), policy_of(Sharding::full_shard, BackwardPrefetch::post))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 L0 "
          "S2 G2 B2 S1 R2 s2 G1 B1 R1 s1 r2 B0 R0 s0 r1 r0");
  }

  TEST_CASE("make_schedule: forward prefetch, with and without the limiter") {
    auto policy = policy_of(Sharding::full_shard, BackwardPrefetch::none);
    policy.forward_prefetch = true;
    const std::string backward = " L0 S2 G2 B2 R2 s2 S1 G1 B1 R1 s1 r2 B0 R0 s0 r1 r0";
    CHECK(compact(make_schedule(two_blocks(), policy)) == "S0 G0 S1 F0 G1 S2 F1 R1 G2 F2 R2" + backward);
    policy.limit_all_gathers = false;
    CHECK(compact(make_schedule(two_blocks(), policy)) == "S0 G0 S1 S2 F0 G1 F1 R1 G2 F2 R2" + backward);
  }

  TEST_CASE("make_schedule: grad-shard gathers once; no-shard has the same order") {
    const std::string want = "S0 G0 F0 S1 G1 F1 S2 G2 F2 L0 B2 R2 s2 B1 R1 s1 r2 B0 R0 s0 r1 r0";
    for (const auto sharding : {Sharding::grad_shard, Sharding::no_shard, Sharding::hybrid_grad_shard}) {
      CHECK(compact(make_schedule(two_blocks(), policy_of(sharding, BackwardPrefetch::pre))) == want);
    }
  }

  TEST_CASE("make_schedule: checkpointed layers are recomputed just before their backward") {
    auto input = two_blocks();
    input.checkpointed = {false, true, false};
    CHECK(compact(make_schedule(input, policy_of(Sharding::grad_shard, BackwardPrefetch::pre))) ==
          "S0 G0 F0 S1 G1 F1 S2 G2 F2 L0 B2 R2 s2 C1 B1 R1 s1 r2 B0 R0 s0 r1 r0");
  }

  TEST_CASE("make_schedule: optimizer-shard gathers what has changed and frees nothing") {
    auto input = two_blocks();
    input.keep_gathered = true;
    const auto policy = policy_of(Sharding::optimizer_shard, BackwardPrefetch::none);
    const auto first = to_string(make_schedule(input, policy));
    CHECK(first.find("reshard") == std::string::npos);
    CHECK(first.find("finish_reduce 0") != std::string::npos);
    input.already_gathered = {true, true, true};
    CHECK(to_string(make_schedule(input, policy)).find("unshard") == std::string::npos);
    input.training = false;
    CHECK(to_string(make_schedule(input, policy)).find("shard") == std::string::npos);
  }

  TEST_CASE("make_schedule: accumulation keeps grad-shard units gathered and reduces only at the end") {
    auto input = two_blocks();
    input.reduce = false;
    input.keep_gathered = true;
    const auto policy = policy_of(Sharding::grad_shard, BackwardPrefetch::pre);
    CHECK(compact(make_schedule(input, policy)) == "S0 G0 F0 S1 G1 F1 S2 G2 F2 L0 B2 B1 B0");
    input.keep_gathered = false;
    input.reduce = true;
    input.already_gathered = {true, true, true};
    CHECK(compact(make_schedule(input, policy)) == "F0 F1 F2 L0 B2 R2 s2 B1 R1 s1 r2 B0 R0 s0 r1 r0");
  }

  TEST_CASE("make_schedule: everything in one unit") {
    auto input = two_blocks();
    input.layer_unit = {0, 0, 0};
    input.already_gathered = {false};
    CHECK(compact(make_schedule(input, policy_of(Sharding::full_shard, BackwardPrefetch::pre))) ==
          "S0 G0 F0 F1 F2 L0 B2 B1 B0 R0 s0 r0");
  }

  TEST_CASE("make_schedule: evaluation gathers and releases each unit once") {
    auto input = two_blocks();
    input.training = false;
    for (const auto sharding : {Sharding::full_shard, Sharding::grad_shard}) {
      CHECK(compact(make_schedule(input, policy_of(sharding, BackwardPrefetch::pre))) ==
            "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 L0 R0");
    }
  }

  TEST_CASE("make_schedule: the backward pass ends at the lowest trained layer, and frozen units are not reduced") {
    auto input = two_blocks();
    input.first_backward = 2;  // the upper block and the root, which holds the head
    input.frozen = {false, true, false};
    CHECK(compact(make_schedule(input, policy_of(Sharding::full_shard, BackwardPrefetch::pre))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 S2 L0 R0 s0 G2 B2 R2 s2 r0 r2");
    CHECK(compact(make_schedule(input, policy_of(Sharding::grad_shard, BackwardPrefetch::pre))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 L0 R0 s0 B2 R2 s2 r0 r2");
    input.frozen = {true, true, false};
    CHECK(compact(make_schedule(input, policy_of(Sharding::full_shard, BackwardPrefetch::none))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 L0 R0 S2 G2 B2 R2 s2 r2");
    input.first_backward = 3;  // only the head
    input.frozen = {false, true, true};
    CHECK(compact(make_schedule(input, policy_of(Sharding::full_shard, BackwardPrefetch::pre))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 L0 R0 s0 r0");
    input.first_backward = 1;  // the lower block: gradients pass through the upper one
    input.frozen = {true, false, true};
    CHECK(compact(make_schedule(input, policy_of(Sharding::full_shard, BackwardPrefetch::none))) ==
          "S0 G0 F0 S1 G1 F1 R1 S2 G2 F2 R2 L0 R0 S2 G2 B2 R2 S1 G1 B1 R1 s1 r1");
  }

  TEST_CASE("to_string: one event per line") {
    CHECK(to_string({{ActionKind::unshard, 0}, {ActionKind::finish_reduce, 12}}) == "unshard 0\nfinish_reduce 12\n");
  }

  TEST_CASE("make_schedule: the rules hold for every combination of options") {
    // clang-format off
    const std::vector<std::vector<int>> wraps{{0, 1, 2, 3, 4}, {0, 1, 1, 2, 2}, {0, 1, 1, 1, 2}, {0, 1, 2, 2, 2}, {0, 0, 0, 0, 0}, {0, 1}};
    constexpr auto prefetches = distinct_values<kPrefetchNames>();
    std::size_t cases = 0;
    for (const auto sharding : kShardings)
    for (const auto prefetch : prefetches)
    for (const bool forward_prefetch : {false, true})
    for (const bool limiter : {false, true})
    for (const int checkpoint_every : {0, 1, 2})
    for (const auto& wrap : wraps)
    for (const int first : {0, 1, 2, 9})  // lowest trained layer
    for (const bool frozen_root : {false, true})
    for (int place = 0; place < 5; ++place) {  // only, first, first with reduction, last, evaluation
      auto policy = policy_of(sharding, prefetch);
      policy.forward_prefetch = forward_prefetch;
      policy.limit_all_gathers = limiter;
      ScheduleInput input;
      input.layer_unit = wrap;
      for (std::size_t s = 0; s < wrap.size(); ++s) {
        input.checkpointed.push_back(s > 0 && checkpoint_every > 0 && (s - 1) % static_cast<std::size_t>(checkpoint_every) == 0);
      }
      input.first_backward = std::min(first, static_cast<int>(wrap.size()));
      input.frozen.assign(static_cast<std::size_t>(*std::max_element(wrap.begin(), wrap.end())) + 1, true);
      for (auto s = static_cast<std::size_t>(input.first_backward); s < wrap.size(); ++s)
        input.frozen[static_cast<std::size_t>(wrap[s])] = false;
      input.frozen[0] = frozen_root;
      const bool keeps = !gathers_again_in_backward(sharding);
      input.training = place != 4;
      input.reduce = place != 1;
      input.keep_gathered = stays_gathered(sharding) || ((place == 1 || place == 2) && keeps);  // as the engine does
      input.already_gathered.assign(static_cast<std::size_t>(*std::max_element(wrap.begin(), wrap.end())) + 1, place == 3 && keeps);
      const auto actions = make_schedule(input, policy);
      const auto sharding_name = std::string(to_string(sharding));
      INFO(sharding_name, " place ", place, "\n", compact(actions));
      Checker(input, policy).run(actions);
      ++cases;
    }
    CHECK(kShardings.size() == 6);
    // forward prefetch, limiter, checkpointing, wraps, lowest trained layer, frozen root, place
    CHECK(cases == kShardings.size() * prefetches.size() * 2 * 2 * 3 * wraps.size() * 4 * 2 * 5);
  }
}
