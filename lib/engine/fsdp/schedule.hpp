#pragma once
// The order of one micro-batch: which unit is gathered, computed with, released and reduced when. Pure and printable;
// the engine does what the list says, and tests compare lists.
#include <string>
#include <vector>

#include "lib/engine/fsdp/policy.hpp"

namespace fsdp {

enum class ActionKind {
  unshard,           ///< unit: its all-gather begins
  wait_for_unshard,  ///< unit: its parameters can be read
  forward,           ///< layer
  loss,              ///< head and loss, forward and (in training) backward
  recompute,         ///< layer: forward again from its kept input (activation checkpointing)
  backward,          ///< layer
  reshard,           ///< unit: its gathered parameters go
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
  int first_backward = 0;    ///< the lowest layer that the backward has to reach: below, nothing is trained
  std::vector<bool> frozen;  ///< per unit: nothing in it is trained, so it has no gradients; empty: none is
  bool training = true;
  bool reduce = true;                  ///< gradients travel after this micro-batch
  bool keep_gathered = false;          ///< stay gathered for the next micro-batch (grad-shard under accumulation)
  std::vector<bool> already_gathered;  ///< per unit, from the micro-batch before
  std::vector<bool> already_coming;    ///< per unit, from the step before; empty: none is
};

std::vector<Action> make_schedule(const ScheduleInput& input, const EnginePolicy& policy);

/// "start_gather 1" and so on, one action a line.
std::string to_string(const std::vector<Action>& actions);

}  // namespace fsdp
