#pragma once
// Objects that callers of the engine hold while they work on one parameter or one layer. What each holds ends with it.
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/engine/offload/tensor_store.hpp"

namespace fsdp {

namespace detail {
class ShardStorage;
class Units;
struct Unit;
}  // namespace detail

/// Keeps the master weights of a parameter and its optimizer states in memory.
class HeldShard {
 public:
  /// \param unfinished  counts the changes that have not ended. The references must outlive the object
  HeldShard(detail::ShardStorage& storage, const detail::Units& units, std::size_t param, Access access,
            int& unfinished);
  HeldShard(const HeldShard&) = delete;
  HeldShard& operator=(const HeldShard&) = delete;
  ~HeldShard();

  /// This rank's rows of the master weights, see Engine::master_weight().
  const at::Tensor& values() const { return values_; }
  /// Ends a change of values or states, so that Engine::sync_parameters() finds it. To be called unless the access is
  /// Access::read. \throws IoError
  void finish();

 private:
  detail::ShardStorage& storage_;
  const detail::Unit& unit_;
  std::size_t place_;  ///< of the parameter in the unit
  int* unfinished_;    ///< null: nothing is to be finished
  int exceptions_;     ///< in flight when the object was made
  StoreHold held_;
  at::Tensor values_;
};

/// Gathered parameters of one layer. They are freed at the end, unless they stayed gathered before.
class GatheredLayer {
 public:
  /// \param is_free  the unit's parameters are to be freed
  GatheredLayer(detail::Unit& unit, std::vector<at::Tensor> params, bool is_free)
      : unit_(unit), params_(std::move(params)), frees_(is_free) {}
  GatheredLayer(const GatheredLayer&) = delete;
  GatheredLayer& operator=(const GatheredLayer&) = delete;
  ~GatheredLayer();

  LayerParams params() const { return params_; }

 private:
  detail::Unit& unit_;
  std::vector<at::Tensor> params_;
  bool frees_;
};

/// The end of a forward pass where the loss layer has not run: what that layer would get.
class ForwardEnd {
 public:
  /// \param frees  units whose parameters are to be freed. The references must outlive the object
  ForwardEnd(std::vector<detail::Unit*> frees, const EngineObservers& observers, std::vector<at::Tensor> params,
             at::Tensor x_ND)
      : frees_(std::move(frees)),
        observers_(observers),
        params_(std::move(params)),
        x_ND_(std::move(x_ND)),
        scope_(std::in_place, observers, "head and loss", "compute") {}
  ForwardEnd(const ForwardEnd&) = delete;
  ForwardEnd& operator=(const ForwardEnd&) = delete;
  ~ForwardEnd();

  /// Gathered parameters of the loss layer.
  LayerParams params() const { return params_; }
  /// Output of the last layer. Undefined on a rank whose batch is empty.
  const at::Tensor& x_ND() const { return x_ND_; }

 private:
  std::vector<detail::Unit*> frees_;
  const EngineObservers& observers_;
  std::vector<at::Tensor> params_;
  at::Tensor x_ND_;
  std::optional<EngineObservers::Scope> scope_;
};

}  // namespace fsdp
