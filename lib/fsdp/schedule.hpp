#pragma once
// The order of one micro-batch: which unit is gathered, computed with, released and reduced when. Pure and printable;
// the engine does what the list says, and tests compare lists.
#include <string>
#include <vector>

#include "lib/fsdp/policy.hpp"

namespace fsdp {

enum class EventKind {
  start_gather,   ///< unit: its all-gather begins
  finish_gather,  ///< unit: its parameters can be read
  forward,        ///< stage
  loss,           ///< head and loss, forward and (in training) backward
  recompute,      ///< stage: forward again from its kept input (activation checkpointing)
  backward,       ///< stage
  release,        ///< unit: its gathered parameters go
  start_reduce,   ///< unit: its gradients are complete on this rank
  finish_reduce   ///< unit: summed into this rank's gradient shard
};

struct Event {
  EventKind kind;
  int index;  ///< unit or stage, by kind
  bool operator==(const Event&) const = default;
};

struct ScheduleInput {
  std::vector<int> stage_unit;     ///< unit of each stage before the last
  std::vector<bool> checkpointed;  ///< per stage
  int loss_unit = 0;
  bool training = true;
  bool reduce = true;                  ///< gradients travel after this micro-batch
  bool keep_gathered = false;          ///< stay gathered for the next micro-batch (grad-shard under accumulation)
  std::vector<bool> already_gathered;  ///< per unit, from the micro-batch before
};

std::vector<Event> make_schedule(const ScheduleInput& input, const EnginePolicy& policy);

/// "start_gather 1" and so on, one event a line.
std::string to_string(const std::vector<Event>& events);

/// Most units gathered or under way at once, for tests and the memory estimate.
int max_gathered(const std::vector<Event>& events, int already_gathered);

}  // namespace fsdp
