#pragma once
// What turns gradients into updates of master weights, shard by shard: what all optimizers have in common.
//
// An update of an element needs nothing but that element, its gradient and its states, so it is the same on any number
// of ranks and in any wrapping.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ops/ops.hpp"

namespace fsdp {

enum class OptimizerKind { adamw, anyprecision, lion, sgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999;  ///< all but sgd
  double eps = 1e-8;                  ///< adamw, anyprecision
  double weight_decay = 0.01;
  double momentum = 0;                                                         ///< sgd
  bool nesterov = false;                                                       ///< sgd with momentum
  at::ScalarType momentum_dtype = at::kFloat, variance_dtype = at::kBFloat16;  ///< anyprecision: float32 or bf16
  bool kahan = false;                                                          ///< anyprecision
};

/// A parameter's rows on this rank.
struct OptimizerParam {
  at::Tensor master_weight;  ///< float32, updated in place
  bool decay = true;         ///< weight decay applies
};

class Optimizer {
 public:
  Optimizer(const Ops& ops, std::vector<OptimizerParam> params, const OptimizerOptions& options);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// One update with learning rate `lr`. \param gradients  of each parameter, divided by `grad_divisor` first: clipping
  /// and the loss scale are free, they are read anyway
  void step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor);
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// Names of the state tensors that each parameter has: PyTorch's class calls them so.
  std::vector<std::string> state_keys() const;
  /// One of them: [padded_rows, ...] like its master weight, and on its device.
  at::Tensor state(std::string_view key, std::size_t param) const;
  /// PyTorch's class keeps a "step" for each parameter, too.
  virtual bool has_step() const { return true; }
  /// What PyTorch's param_groups have beside lr, weight_decay and params.
  virtual nlohmann::json group_fields() const = 0;
  const OptimizerOptions& options() const { return options_; }

 protected:
  /// Adds a state of zeros to every parameter.
  void add_state(const std::string& key, at::ScalarType dtype = at::kFloat);
  /// The states of `key` of some parameters.
  std::vector<at::Tensor> states(std::string_view key, const std::vector<std::size_t>& params) const;
  const Ops& ops() const { return ops_; }
  /// \param group  everything but the states is filled
  virtual void update(const UpdateGroup& group, const std::vector<std::size_t>& params) = 0;

 private:
  struct State {
    std::string key;
    std::vector<at::Tensor> tensors;
  };
  void step_group(const std::vector<at::Tensor>& gradients, UpdateGroup group, bool decay);

  const Ops& ops_;
  std::vector<OptimizerParam> params_;
  OptimizerOptions options_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const Ops& ops, std::vector<OptimizerParam> params,
                                          const OptimizerOptions& options);

/// adamw, anyprecision, lion, sgd, or a name that the Hugging Face trainer has for one of them. \throws UsageError
/// naming the choices
OptimizerKind parse_optimizer(std::string_view text);
std::string_view to_string(OptimizerKind kind);
/// As PyTorch or its authors write it: "AdamW".
const char* display_name(OptimizerKind kind);

}  // namespace fsdp
