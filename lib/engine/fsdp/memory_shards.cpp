// Shards that are always in memory: on the device or, with cpu_offload, on the host.
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/fsdp/shard_storage.hpp"
#include "lib/engine/fsdp/units.hpp"

namespace fsdp::detail {
namespace {

/// All parameters at once.
class OneGroup final : public ParameterGroups::Source {
 public:
  explicit OneGroup(std::size_t num_parameters) : params_(num_parameters) {
    std::iota(params_.begin(), params_.end(), 0);
  }
  const ParameterGroups::Params* next() override { return std::exchange(is_over_, true) ? nullptr : &params_; }

 private:
  ParameterGroups::Params params_;
  bool is_over_ = false;
};

class MemoryShards final : public ShardStorage {
 public:
  MemoryShards(const Ops& ops, const EnginePolicy& policy) : ops_(ops), policy_(policy) {}

  bool stays_in_memory() const override { return true; }

  std::vector<StoredTensor> make_parameters(const Unit&) override { return {}; }
  /// The gathered rows are the master weight if dtype and device are equal.
  StoredTensor make_master_weight(const Unit& unit, std::size_t place, const StoredTensor& own) override {
    const auto dtype = type_of(unit.layouts[place], policy_.precision.master_dtype);
    const auto gathered = type_of(unit.layouts[place], policy_.precision.param_dtype);
    if (dtype == gathered && (!policy_.cpu_offload || ops_.on_host())) return own;
    const MemoryScope scope(MemoryCategory::parameters, policy_.cpu_offload);
    const auto device = policy_.cpu_offload ? ops_.host() : ops_.device();
    return at::zeros(own.sizes(), at::TensorOptions(dtype).device(device));
  }
  std::vector<StoredTensor> make_gradients(const Unit&) override { return {}; }

  StoreHold hold_gradients(const Unit&, Access) override { return {}; }
  bool has_gradients(const Unit&) const override { return true; }
  void measure_gradients(const Units&, const Unit&) override {}
  double sum_squares(const Units& units, std::span<const std::size_t> params) const override {
    const auto parts = units.gradient_parts(params);
    return parts.empty() ? 0.0 : ops_.sum_squares(parts);
  }
  void begin_gather(const Unit&) override {}
  void cast(const Unit& unit) override {
    std::vector<CastShard> rows;
    for (std::size_t i = 0; i < unit.master_weights.size(); ++i) {
      const CastShard pair{unit.gathered->local_shard(i).get(), unit.master_weights[i].get()};
      if (!pair.to.is_same(pair.from)) rows.push_back(pair);
    }
    ops_.cast_shards(rows);
  }
  void cast_held(const Unit&, std::size_t) override {}
  void settle() override {}
  ParameterGroups groups(const Units& units, UnitPass) override {
    return ParameterGroups(std::make_unique<OneGroup>(units.num_parameters()));
  }

 private:
  const Ops& ops_;
  const EnginePolicy& policy_;
};

}  // namespace

std::unique_ptr<ShardStorage> make_memory_shards(const Ops& ops, const EnginePolicy& policy) {
  return std::make_unique<MemoryShards>(ops, policy);
}

}  // namespace fsdp::detail
