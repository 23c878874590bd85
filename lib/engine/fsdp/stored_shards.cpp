// Shards in a TensorStore: gradients of a unit are one group, master weights and optimizer states of a few parameters
// another one. An update goes from group to group, and reads ahead.
#include <c10/util/accumulate.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lib/base/types/index.hpp"
#include "lib/engine/fsdp/shard_storage.hpp"
#include "lib/engine/fsdp/units.hpp"

namespace fsdp::detail {
namespace {

/// A group of the store with master weights and optimizer states of some parameters of a unit. Groups are as small as
/// whole parameters and TensorStore::group_bytes() allow.
struct StepGroup {
  std::size_t group = 0;
  std::vector<std::size_t> places = {};  ///< of the parameters in the unit
  std::int64_t elements = 0;
};

/// Bytes per element of a master weight and two optimizer states in float32.
constexpr std::int64_t kElementBytes = 12;

class StoredShards final : public ShardStorage {
 public:
  StoredShards(TensorStore& store, const Ops& ops, const EnginePolicy& policy)
      : store_(store), ops_(ops), policy_(policy) {}

  bool stays_in_memory() const override { return false; }

  std::vector<StoredTensor> make_parameters(const Unit& unit) override {
    auto& group = places_of(unit).parameters;
    std::vector<StoredTensor> shards(unit.layouts.size());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const auto& layout = unit.layouts[i];
      if (!layout.trainable) continue;
      if (!group) group = store_.add_group(MemoryCategory::parameters, false);
      const auto sizes = layout.shape_with_rows(unit.ranges[i].padded_rows);
      shards[i] = {store_, store_.add(*group, sizes, type_of(layout, policy_.precision.param_dtype))};
    }
    return shards;
  }

  StoredTensor make_master_weight(const Unit& unit, std::size_t place, const StoredTensor& own) override {
    const auto sizes = own.sizes().vec();
    const auto elements = c10::multiply_integers(sizes);
    auto& groups = places_of(unit).steps;
    if (groups.empty() || (groups.back().elements + elements) * kElementBytes > store_.group_bytes())
      groups.push_back({.group = store_.add_group(MemoryCategory::optimizer, true)});
    groups.back().places.push_back(place);
    groups.back().elements += elements;
    const auto dtype = type_of(unit.layouts[place], policy_.precision.master_dtype);
    return {store_, store_.add(groups.back().group, sizes, dtype)};
  }

  std::vector<StoredTensor> make_gradients(const Unit& unit) override {
    auto& group = places_of(unit).gradients;
    group = store_.add_group(MemoryCategory::gradients, false);
    std::vector<StoredTensor> shards;
    for (std::size_t i = 0; i < unit.layouts.size(); ++i) {
      if (unit.trained[i] < 0) continue;
      const auto sizes = unit.layouts[i].shape_with_rows(unit.ranges[i].padded_rows);
      shards.emplace_back(store_, store_.add(*group, sizes, at::kFloat));
    }
    return shards;
  }

  StoreHold hold_gradients(const Unit& unit, Access access) override {
    const auto& group = places_of(unit).gradients;
    return group ? StoreHold(store_, *group, access) : StoreHold();
  }
  bool has_gradients(const Unit& unit) const override {
    const auto index = to_index(unit.index);
    return index >= places_.size() || !places_[index].gradients || store_.is_held(*places_[index].gradients);
  }
  /// Also zeroes the padding.
  void measure_gradients(const Units& units, const Unit& unit) override {
    squares_.resize(units.num_parameters(), 0.0);
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      const auto param = to_index(unit.params[i]);
      const auto grad = units.gradient(param);
      if (!grad.defined()) continue;
      const auto rows = unit.ranges[i].num_rows;
      grad.narrow(0, rows, grad.size(0) - rows).zero_();
      const GradPart part{grad, rows * unit.layouts[i].row_elements()};
      squares_[param] = part.elements > 0 ? ops_.sum_squares({&part, 1}) : 0.0;
    }
  }
  double sum_squares(const Units&, std::span<const std::size_t> params) const override {
    double sum = 0;
    for (const auto param : params) sum += param < squares_.size() ? squares_[param] : 0.0;
    return sum;
  }

  void begin_gather(const Unit& unit) override {
    if (!places_of(unit).parameters) return;
    const auto next = to_index(unit.index + (unit.index >= last_gather_ ? 1 : -1));
    last_gather_ = unit.index;
    if (next < places_.size() && places_[next].parameters) store_.read_ahead(*places_[next].parameters);
  }
  /// A frozen parameter's master weight is what is gathered, and the others are cast while they are held.
  void cast(const Unit&) override {}
  void cast_held(const Unit& unit, std::size_t place) override {
    changed_ = true;
    cast_rows(unit, place);
  }
  /// With an empty memory, as predictions assume.
  void settle() override {
    if (std::exchange(changed_, false)) store_.flush();
  }
  ParameterGroups groups(const Units& units, UnitPass pass) override;

 private:
  class GradientGroups;
  class UpdateGroups;

  /// The groups of the store that belong to a unit.
  struct Places {
    std::vector<StepGroup> steps;
    std::optional<std::size_t> gradients;
    std::optional<std::size_t> parameters;  ///< in param_dtype, if these are in the store, too
  };

  Places& places_of(const Unit& unit) {
    const auto index = to_index(unit.index);
    if (places_.size() <= index) places_.resize(index + 1);
    return places_[index];
  }
  StoreHold hold_parameters(const Unit& unit, Access access) {
    const auto& group = places_of(unit).parameters;
    return group ? StoreHold(store_, *group, access) : StoreHold();
  }
  void cast_rows(const Unit& unit, std::size_t place) {
    const auto held = hold_parameters(unit, Access::update);
    const auto own = unit.gathered->local_shard(place).get();
    const auto master_weight = unit.master_weights[place].get();
    if (!own.is_same(master_weight)) own.copy_(master_weight);
  }

  TensorStore& store_;
  const Ops& ops_;
  const EnginePolicy& policy_;
  std::vector<Places> places_;   ///< by unit
  std::vector<double> squares_;  ///< by parameter: sums of squares of the gradients
  int last_gather_ = 0;          ///< index of the unit
  bool changed_ = false;         ///< shards were changed outside of an update
};

/// Unit by unit, the parameters whose gradients are in memory.
class StoredShards::GradientGroups final : public ParameterGroups::Source {
 public:
  GradientGroups(StoredShards& shards, const Units& units) : shards_(shards), units_(units) {}

  const ParameterGroups::Params* next() override {
    for (held_.release(); unit_ < units_.size();) {
      const auto& unit = units_[unit_++];
      held_ = shards_.hold_gradients(unit, Access::read);
      params_.assign(unit.params.begin(), unit.params.end());
      if (held_) return &params_;
    }
    return nullptr;
  }

 private:
  StoredShards& shards_;
  const Units& units_;
  std::size_t unit_ = 0;  ///< the next one
  StoreHold held_;
  ParameterGroups::Params params_;
};

/// The parameters of one group of the store after the other, with their gradients.
class StoredShards::UpdateGroups final : public ParameterGroups::Source {
 public:
  UpdateGroups(StoredShards& shards, const Units& units) : shards_(shards), units_(units) {
    for (const auto& unit : units) {
      const auto& places = shards.places_of(*unit);
      if (!places.gradients) continue;
      order_.push_back(*places.gradients);
      for (const auto& part : places.steps) order_.push_back(part.group);
    }
  }

  const ParameterGroups::Params* next() override {
    if (step_) end_step();
    while (left_.empty()) {
      parameters_.release();
      gradients_.release();
      if (unit_ == units_.size()) return nullptr;
      begin_unit(units_[unit_++]);
    }
    begin_step();
    return &params_;
  }

 private:
  void begin_unit(const Unit& unit) {
    gradients_ = shards_.hold_gradients(unit, Access::read);
    parameters_ = shards_.hold_parameters(unit, Access::overwrite);
    if (gradients_) ++next_;
    left_ = shards_.places_of(unit).steps;
  }
  void begin_step() {
    auto& store = shards_.store_;
    const auto& part = left_.front();
    step_ = StoreHold(store, part.group, Access::update);
    ++next_;
    // Read ahead the next gradients and the optimizer states that follow them.
    for (auto ahead = next_; ahead < std::min(order_.size(), next_ + 2) && store.read_ahead(order_[ahead]); ++ahead) {
    }
    params_.clear();
    for (const auto place : part.places) params_.push_back(to_index(units_[unit_ - 1].params[place]));
  }
  void end_step() {
    for (const auto place : left_.front().places) shards_.cast_rows(units_[unit_ - 1], place);
    step_.release();
    left_ = left_.subspan(1);
  }

  StoredShards& shards_;
  const Units& units_;
  std::vector<std::size_t> order_;           ///< groups of the store, as they are used
  std::size_t next_ = 0;                     ///< index in order_ of the first group that is not in use
  std::size_t unit_ = 0;                     ///< index of the unit after the present one
  std::span<const StepGroup> left_;          ///< of the present unit, from the one in use on
  StoreHold gradients_, parameters_, step_;  ///< released in the opposite order
  ParameterGroups::Params params_;
};

ParameterGroups StoredShards::groups(const Units& units, UnitPass pass) {
  if (pass == UnitPass::read_gradients) return ParameterGroups(std::make_unique<GradientGroups>(*this, units));
  return ParameterGroups(std::make_unique<UpdateGroups>(*this, units));
}

}  // namespace

std::unique_ptr<ShardStorage> make_stored_shards(TensorStore& store, const Ops& ops, const EnginePolicy& policy) {
  return std::make_unique<StoredShards>(store, ops, policy);
}

}  // namespace fsdp::detail
