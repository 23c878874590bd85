#include "lib/engine/fsdp/update_and_gather.hpp"

#include <algorithm>
#include <optional>

#include "lib/base/types/index.hpp"
#include "lib/compute/tensor/without_autograd.hpp"

namespace fsdp::detail {
namespace {

class UpdateAndGather final : public ParameterGroups::Source {
 public:
  UpdateAndGather(const Units& units, const std::vector<int>& first, AxisCounts& counts,
                  const EngineObservers& observers)
      : units_(units), first_(first), counts_(counts), observers_(observers) {
    units_.forget_gathered();
    for (const auto& unit : units_) {
      agree_ = agree_ || unit->gathered->sync_asks_ranks();
      if (std::find(first_.begin(), first_.end(), unit->index) == first_.end())
        others_.insert(others_.end(), unit->params.begin(), unit->params.end());
    }
    std::sort(others_.begin(), others_.end());
  }

  const ParameterGroups::Params* next() override {
    const WithoutAutograd guard;
    if (begun_ > first_.size()) return end();
    if (begun_ > 0) end_unit(unit(begun_ - 1));
    if (begun_ < first_.size()) {
      const auto& next = unit(begun_++);
      scope_.emplace(
          observers_, [&] { return "update " + next.name; }, "optimizer");
      params_.assign(next.params.begin(), next.params.end());
      return &params_;
    }
    for (std::size_t i = 0; agree_ && i < first_.size(); ++i) gather(unit(i));
    ++begun_;
    scope_.emplace(observers_, "update the other units", "optimizer");
    return &others_;
  }

 private:
  Unit& unit(std::size_t i) const { return element(units_, first_[i]); }

  void end_unit(Unit& unit) {
    unit.gathered->begin_sync();
    scope_.reset();
    if (!agree_) gather(unit);
  }

  void gather(Unit& unit) {
    const EngineObservers::Scope scope(
        observers_, [&] { return "gather " + unit.name; }, "schedule");
    unit.gathered->finish_sync();
    units_.unshard(unit, counts_);
    unit.is_coming = true;
  }

  const ParameterGroups::Params* end() {
    for (const auto& unit : units_) {
      if (!unit->is_coming) unit->gathered->begin_sync();
    }
    for (const auto& unit : units_) {
      if (!unit->is_coming) unit->gathered->finish_sync();
    }
    scope_.reset();
    return nullptr;
  }

  const Units& units_;
  const std::vector<int>& first_;
  AxisCounts& counts_;
  const EngineObservers& observers_;
  /// If ranks must agree on scales first, all of those messages are sent before the first all-gather, for which they
  /// would wait.
  bool agree_ = false;
  std::size_t begun_ = 0;  ///< of first_; one more when the others are updated
  ParameterGroups::Params params_, others_;
  std::optional<EngineObservers::Scope> scope_;
};

}  // namespace

ParameterGroups update_and_gather(const Units& units, const std::vector<int>& first, AxisCounts& counts,
                                  const EngineObservers& observers) {
  return ParameterGroups(std::make_unique<UpdateAndGather>(units, first, counts, observers));
}

}  // namespace fsdp::detail
