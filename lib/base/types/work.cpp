#include "lib/base/types/work.hpp"

#include "lib/base/types/index.hpp"

namespace fsdp {

const char* to_string(StepPart part) {
  constexpr std::array<const char*, kNumStepParts> kNames{"block", "head", "exchange", "update", "input", "other"};
  return element(kNames, part);
}

StepPart part_of(std::string_view what, std::string_view category, StepPart outer) {
  if (category == "compute") return what == "head and loss" ? StepPart::head : StepPart::block;
  if (category == "collective") return StepPart::exchange;
  if (category == "optimizer") return StepPart::update;
  if (category == "input") return StepPart::input;
  // Scopes that only start or end transfers, or wait for buffers.
  return outer == StepPart::other ? StepPart::exchange : outer;
}

void WorkLog::restart() {
  work_.clear();
  next_id_ = 0;
}

void WorkLog::begin(std::string_view what, std::string_view category) {
  const auto outer = scopes_.empty() ? StepPart::other : scopes_.back().part;
  const bool inside = !scopes_.empty() && scopes_.back().again;
  scopes_.push_back({part_of(what, category, outer), inside || what.starts_with("recompute ")});
}

void WorkLog::end() { scopes_.pop_back(); }

void WorkLog::add(WorkItem work) {
  if (!scopes_.empty()) {
    work.part = scopes_.back().part;
    work.again = scopes_.back().again;
  }
  work.times = times_.back();
  work_.push_back(work);
}

int WorkLog::start(const TransferWork& transfer) {
  WorkItem work;
  work.kind = WorkItem::Kind::start;
  work.transfer = transfer;
  work.id = next_id_++;
  add(work);
  return work.id;
}

void WorkLog::wait(int id) {
  WorkItem work;
  work.kind = WorkItem::Kind::wait;
  work.id = id;
  add(work);
}

void WorkLog::begin_repeat(double times) { times_.push_back(times_.back() * times); }

void WorkLog::end_repeat() { times_.pop_back(); }

}  // namespace fsdp
