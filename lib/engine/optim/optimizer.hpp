#pragma once
// Optimizers on shards: the interface and what all optimizers share.
//
// Results do not depend on the number of ranks or on wrapping: the update of an element uses that element, its gradient
// and its states, and values of whole parameters (sums, blocks) are computed together with the ranks that have the
// other rows.
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/optim/child_tuning.hpp"
#include "lib/engine/optim/optimizer_param.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

enum class OptimizerKind {
  adamw,
  anyprecision,
  lion,
  sgd,
  adafactor,
  adamw_8bit,  ///< and lion_8bit: bitsandbytes'
  lion_8bit,
  adamw_torchao_8bit,
  adamw_torchao_4bit,
  muon
};
/// True if the moments are 8-bit or 4-bit codes.
bool keeps_codes(OptimizerKind kind);

struct AdafactorOptions {
  bool transformers = false;     ///< its class in place of torch's
  bool relative_step = false;    ///< transformers: the step's own learning rate
  bool warmup_init = false;      ///< transformers, with relative_step: from 1e-6 t on
  bool scale_parameter = false;  ///< transformers: times the parameter's root mean square
  double beta1 = 0;              ///< transformers: averages updates; 0: off
};

/// Parameters whose states a quantised optimizer keeps as codes; the states of the others are float32.
struct EightBitOptions {
  std::int64_t least_elements = 4096;  ///< of a parameter
  bool everything = false;             ///< embeddings and vectors too
};

/// Scaling of muon's learning rate by matrix shape; names as in torch.optim.Muon.
enum class MuonAdjustLr {
  match_rms_adamw,  ///< as AdamW's, by which the other parameters are trained: times 0.2 sqrt(max(rows, columns))
  original          ///< times sqrt(max(1, rows / columns))
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999;  ///< adamw and lion of all kinds, anyprecision
  double eps = 1e-8;                  ///< adamw of all kinds, anyprecision
  double weight_decay = 0.01;
  double momentum = 0;                                                         ///< sgd, muon
  bool nesterov = false;                                                       ///< sgd with momentum
  at::ScalarType momentum_dtype = at::kFloat, variance_dtype = at::kBFloat16;  ///< anyprecision: float32 or bf16
  bool kahan = false;                                                          ///< anyprecision
  AdafactorOptions adafactor;
  EightBitOptions eight_bit;
  MuonAdjustLr muon_adjust_lr = MuonAdjustLr::match_rms_adamw;
  ChildTuningOptions child_tuning;
};

/// What PyTorch's class keeps beside a parameter's states: a count of steps.
enum class StepState {
  none,
  tensor,  ///< float32, no dimensions
  number
};

/// `ops` and `ranks` must outlive the optimizer.
struct OptimizerInput {
  const Ops& ops;
  std::vector<OptimizerParam> params;
  OptimizerOptions options;
  TensorCollectives* ranks = nullptr;  ///< that have the other rows; null: nobody has
  TensorStore* store = nullptr;        ///< of master weights that are in one
};

class Optimizer {
 public:
  explicit Optimizer(OptimizerInput input);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// One update with learning rate `lr`. Collective. \param gradients  by parameter; divided by `grad_divisor` in the
  /// same pass, so that clipping and the loss scale cost nothing. Child-Tuning changes them
  void step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor);
  /// A step in parts, for parameters that are in memory at different times: begin_step(), then step_part() for each
  /// part.
  void begin_step() { ++steps_; }
  void step_part(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, double lr,
                 double grad_divisor);
  /// As step_part(), with a decision made on the device; only if takes_decisions(). \param published  see UpdateGroup;
  /// by parameter
  void step_part_decided(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, double lr,
                         const at::Tensor& decision, const std::vector<at::Tensor>& published);
  /// True if the update can follow a decision made on the device (lib/compute/ops/optimizer_updates.hpp).
  virtual bool takes_decisions() const { return false; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// The child of Child-Tuning's D is not chosen yet: add_fisher() and choose_child() come before the first step.
  bool is_choosing_child() const { return choosing_child_; }
  /// Adds the squares of one batch's gradients; undefined ones are another call's. \param divisors  each parameter's
  /// gradient is divided by its own first
  void add_fisher(const std::vector<at::Tensor>& gradients, const std::vector<double>& divisors);
  /// Replaces the sums by masks. Collective. \param ranks  the ranks that have the other rows
  ChildSummary choose_child(ProcessGroup& ranks);
  /// Makes its states anew, zero, for what a checkpoint has: masks, or sums. Does nothing without D.
  void expect_child(bool chosen);

  std::size_t num_params() const { return input_.params.size(); }
  /// The states of one parameter. The tensors share memory with the optimizer's.
  const std::vector<OptimizerState>& states(std::size_t param) const { return states_.at(param); }
  /// The values of one of them.
  at::Tensor state(std::string_view key, std::size_t param) const;
  /// The parameter is never updated and has no states: layout.trainable is false.
  bool is_frozen(std::size_t param) const { return !input_.params[param].layout.trainable; }
  StepState step_state(std::size_t param) const { return is_frozen(param) ? StepState::none : kind_of_step(param); }
  /// The name of the class in PyTorch or in the authors' code: "AdamW".
  virtual std::string name() const = 0;
  /// Fields of PyTorch's param_groups other than lr, weight_decay and params.
  virtual nlohmann::json group_fields() const = 0;
  const OptimizerOptions& options() const { return input_.options; }

 protected:
  virtual StepState kind_of_step(std::size_t /*param*/) const { return StepState::tensor; }
  const OptimizerParam& param(std::size_t i) const { return input_.params[i]; }
  const Ops& ops() const { return input_.ops; }
  /// Adds a state of zeros in the parameter's shape to it, or to all. A frozen one gets none, here and below.
  void add_state(std::size_t param, const std::string& key, at::ScalarType dtype = at::kFloat);
  void add_state(const std::string& key, at::ScalarType dtype = at::kFloat);
  /// Adds a state of zeros that has the parameter's rows, each of `row_shape`.
  void add_row_state(std::size_t param, const std::string& key, at::IntArrayRef row_shape,
                     at::ScalarType dtype = at::kFloat);
  /// Adds a state of zeros that all ranks have whole.
  void add_replicated_state(std::size_t param, const std::string& key, at::IntArrayRef shape,
                            at::ScalarType dtype = at::kFloat);
  /// Adds a state of zeros with the rows that `state` has here; its values are made.
  void add_rows(std::size_t param, OptimizerState state, at::ScalarType dtype);
  void add_child_state(std::size_t param, const std::string& key, at::ScalarType dtype);
  /// Adds values that are no state but belong to it for whoever reads it; on the host.
  void add_constant(std::size_t param, const std::string& key, const at::Tensor& values);
  /// The states of `key` of some parameters.
  std::vector<at::Tensor> states(std::string_view key, const std::vector<std::size_t>& params) const;
  int rank() const { return input_.ranks == nullptr ? 0 : input_.ranks->rank(); }
  int num_ranks() const { return input_.ranks == nullptr ? 1 : input_.ranks->size(); }
  /// Sums a tensor over the ranks that have the rows, in place.
  void sum_over_ranks(const at::Tensor& values) const;
  /// Exchanges the ranks' parts of matrices for whole matrices, and back: part k of each rank, [ranks, ...], goes to
  /// rank k. \return what came, by rank
  at::Tensor exchange(const at::Tensor& parts) const;
  /// Some members of a group, and which parameters these are. \param members  indices into params
  static std::pair<UpdateGroup, std::vector<std::size_t>> choose(const UpdateGroup& group,
                                                                 const std::vector<std::size_t>& params,
                                                                 const std::vector<std::size_t>& members);
  /// AdamW of some members of a group. \param keys  of the two moments
  void adamw_update(const UpdateGroup& group, const std::vector<std::size_t>& params,
                    const std::vector<std::size_t>& members, const std::array<std::string, 2>& keys) const;
  /// \param group  everything but the states is filled
  virtual void update(const UpdateGroup& group, const std::vector<std::size_t>& params) = 0;

 private:
  std::vector<std::size_t> all_params() const;
  void step_both(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, UpdateGroup common);
  void step_group(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, UpdateGroup group,
                  bool decay);
  void mask_gradients(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients) const;

  OptimizerInput input_;
  std::vector<std::vector<OptimizerState>> states_;  ///< by parameter
  std::int64_t steps_ = 0;
  bool choosing_child_ = false;
};

std::unique_ptr<Optimizer> make_optimizer(OptimizerInput input);

/// adamw, adamw8bit, torchao-adamw8bit, torchao-adamw4bit, anyprecision, lion, lion8bit, sgd, adafactor, muon, or a
/// name that the Hugging Face trainer has for one of them. \throws UsageError naming the choices
OptimizerKind parse_optimizer(std::string_view text);
std::string_view to_string(OptimizerKind kind);

std::unique_ptr<Optimizer> make_adafactor(OptimizerInput input);
std::unique_ptr<Optimizer> make_blockwise(OptimizerInput input);
std::unique_ptr<Optimizer> make_muon(OptimizerInput input);

}  // namespace fsdp
