#pragma once
// The schedule of one micro-batch: the order in which units are unsharded, used, resharded and reduced. A pure function
// returns the list of actions; the engine executes the list, and tests compare lists.
#include <string>
#include <vector>

#include "lib/engine/sharding/policy.hpp"

namespace fsdp {

enum class ActionKind {
  unshard,           ///< unit: its all-gather begins
  wait_for_unshard,  ///< unit: its parameters can be read
  forward,           ///< layer
  loss,              ///< head and loss, forward and (in training) backward
  recompute,         ///< layer: forward again from its kept input (activation checkpointing)
  backward,          ///< layer
  reshard,           ///< unit: its full parameters are freed
  start_reduce,      ///< unit: its gradients are complete on this rank
  finish_reduce      ///< unit: summed into this rank's gradient shard
};

struct Action {
  ActionKind kind;
  int index;  ///< unit or layer, by kind
  bool operator==(const Action&) const = default;
};

struct ScheduleInput {
  std::vector<int> layer_unit;     ///< unit of each layer before the last
  std::vector<bool> checkpointed;  ///< per layer
  int loss_unit = 0;
  int first_backward = 0;    ///< lowest layer that the backward reaches; nothing below it is trained
  std::vector<bool> frozen;  ///< per unit: it has no gradients; empty: every unit has some
  bool training = true;
  bool reduce = true;                  ///< reduce gradients after this micro-batch
  bool keep_gathered = false;          ///< keep units unsharded for the next micro-batch: grad-shard with accumulation,
                                       ///< and always with optimizer-shard
  std::vector<bool> already_gathered;  ///< per unit: unsharded since the previous micro-batch
  std::vector<bool> already_coming;    ///< per unit: its all-gather was started after the previous step; empty: none
};

std::vector<Action> make_schedule(const ScheduleInput& input, const EnginePolicy& policy);

/// One action per line: "unshard 1".
std::string to_string(const std::vector<Action>& actions);

}  // namespace fsdp
