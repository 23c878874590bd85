#include "lib/engine/fsdp/guards.hpp"

#include <exception>
#include <utility>

#include "lib/engine/fsdp/units.hpp"

namespace fsdp {

// A group of a store also holds other parameters, so it must be read even if this one is overwritten.
HeldShard::HeldShard(detail::ShardStorage& storage, const detail::Units& units, std::size_t param, Access access,
                     int& unfinished)
    : storage_(storage),
      unit_(units.of(param)),
      place_(units.place(param)),
      unfinished_(access == Access::read ? nullptr : &unfinished),
      exceptions_(std::uncaught_exceptions()),
      held_(units.master_weight(param).hold(access == Access::overwrite ? Access::update : access)),
      values_(units.master_weight(param).get()) {
  if (unfinished_ != nullptr) ++*unfinished_;
}

/// A change that an exception interrupts is not to be finished.
HeldShard::~HeldShard() {
  if (unfinished_ != nullptr && std::uncaught_exceptions() > exceptions_) --*unfinished_;
}

void HeldShard::finish() {
  auto* unfinished = std::exchange(unfinished_, nullptr);
  if (unfinished == nullptr) return;
  --*unfinished;
  if (held_) storage_.cast_held(unit_, place_);
}

GatheredLayer::~GatheredLayer() {
  params_.clear();
  if (frees_) unit_.gathered->reshard();
}

ForwardEnd::~ForwardEnd() {
  scope_.reset();
  params_.clear();
  for (auto* unit : frees_) {
    const EngineObservers::Scope scope(
        observers_, [&] { return "release " + unit->name; }, "schedule");
    unit->gathered->reshard();
    unit->is_gathered = false;
  }
}

}  // namespace fsdp
