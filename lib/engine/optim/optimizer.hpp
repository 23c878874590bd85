#pragma once
// Optimizers on shards: the interface and the code that all optimizers share.
//
// Results do not depend on the number of ranks or on wrapping: the update of an element uses only the element, its
// gradient and its states, and ranks compute values of whole parameters (sums, blocks) together.
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/optim/child_tuning.hpp"
#include "lib/engine/optim/optimizer_param.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct AdafactorOptions {
  bool transformers = false;     ///< follow the class of transformers instead of torch's
  bool relative_step = false;    ///< transformers only: the learning rate is a function of the step
  bool warmup_init = false;      ///< transformers only, with relative_step: the rate starts at 1e-6 t
  bool scale_parameter = false;  ///< transformers only: scale the rate by the parameter's root mean square
  double beta1 = 0;              ///< transformers only: decay of the average of updates; 0: off
};

/// Selects the parameters whose states a quantised optimizer stores as codes; all others have float32 states.
struct EightBitOptions {
  std::int64_t least_elements = 4096;  ///< minimum size of a parameter
  bool everything = false;             ///< also quantise the states of embeddings and vectors
};

/// How muon scales the learning rate by matrix shape; names as in torch.optim.Muon.
enum class MuonAdjustLr {
  match_rms_adamw,  ///< times 0.2 sqrt(max(rows, columns)), which matches the size of AdamW's updates
  original          ///< times sqrt(max(1, rows / columns))
};

struct OptimizerOptions {
  std::string kind = "adamw";         ///< a name of optimizer_types()
  double beta1 = 0.9, beta2 = 0.999;  ///< adamw and lion of all kinds, anyprecision
  double eps = 1e-8;                  ///< adamw of all kinds, anyprecision
  double weight_decay = 0.01;
  std::optional<double> momentum = {};  ///< sgd (none: 0) and muon (none: 0.95)
  bool nesterov = false;                ///< sgd with momentum
  /// anyprecision: float32 or bf16; none: float32 and bf16
  std::optional<at::ScalarType> momentum_dtype = {}, variance_dtype = {};
  bool kahan = false;  ///< anyprecision
  AdafactorOptions adafactor = {};
  EightBitOptions eight_bit = {};
  std::optional<MuonAdjustLr> muon_adjust_lr = {};  ///< none: match_rms_adamw
  ChildTuningOptions child_tuning = {};
};

/// How PyTorch's class stores the count of steps beside a parameter's states.
enum class StepState {
  none,
  tensor,  ///< float32 scalar tensor
  number
};

/// `ops` and `ranks` must outlive the optimizer.
struct OptimizerInput {
  const Ops& ops;
  std::vector<OptimizerParam> params;
  OptimizerOptions options;
  TensorCollectives* ranks = nullptr;  ///< ranks with the other rows; null: this rank has all rows
  TensorStore* store = nullptr;        ///< the store of the master weights; null: they are in memory
};

/// How an update scales gradients: by a number, or by a decision made on the device.
struct GradScaling {
  double divisor = 1;
  at::Tensor decision = {};                  ///< result of Ops::decide(); needs supports_device_decision()
  std::vector<at::Tensor> cast_params = {};  ///< with a decision: as the gradients, see UpdateGroup
};

class Optimizer {
 public:
  explicit Optimizer(OptimizerInput input);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// Makes one update with learning rate `lr`. Collective. \param gradients  indexed by parameter, divided by
  /// `grad_divisor` in the same pass, so that clipping and the loss scale cost no extra pass. Child-Tuning modifies
  /// them in place
  void step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor);
  /// Starts a step in parts, for parameters that are in memory at different times: call begin_step(), then step_part()
  /// for each part. \param gradients  of `params`, in their order
  void begin_step() { ++steps_; }
  void step_part(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, double lr,
                 const GradScaling& scaling);
  /// Whether the update can follow a decision made on the device (lib/compute/ops/updates/optimizer_updates.hpp).
  bool supports_device_decision() const;
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// Whether the child of Child-Tuning-D has yet to be chosen, by add_fisher() and choose_child() before the first
  /// step.
  bool is_choosing_child() const { return choosing_child_; }
  /// Adds the squares of one batch's gradients to the Fisher sums. \param gradients  of `params`, in their order
  /// \param divisors  divisor for each parameter's gradient, by parameter, applied before squaring
  void add_fisher(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients,
                  const std::vector<double>& divisors);
  /// Replaces the Fisher sums by masks. Collective. \param ranks  the ranks that have the other rows
  ChildSummary choose_child(ProcessGroup& ranks);
  /// Recreates the child's states, as zeros, to match a checkpoint: masks if `chosen`, else sums. No effect without
  /// Child-Tuning-D.
  void expect_child(bool chosen);

  std::size_t num_params() const { return input_.params.size(); }
  /// \return the states of one parameter, which share memory with the optimizer's
  const std::vector<OptimizerState>& states(std::size_t param) const { return states_.at(param); }
  /// \return the values of the state `key` of one parameter
  at::Tensor state(std::string_view key, std::size_t param) const;
  /// Whether the parameter is never updated and has no states, because layout.trainable is false.
  bool is_frozen(std::size_t param) const { return !input_.params[param].layout.trainable; }
  StepState step_state(std::size_t param) const { return is_frozen(param) ? StepState::none : kind_of_step(param); }
  /// \return the name of the class in PyTorch or in the authors' code: "AdamW"
  virtual std::string name() const = 0;
  /// \return the fields of PyTorch's param_groups other than lr, weight_decay and params
  virtual nlohmann::json group_fields() const = 0;
  const OptimizerOptions& options() const { return input_.options; }

 protected:
  virtual StepState kind_of_step(std::size_t /*param*/) const { return StepState::tensor; }
  const OptimizerParam& param(std::size_t i) const { return input_.params[i]; }
  const Ops& ops() const { return input_.ops; }
  /// Adds a zero state of the parameter's shape to one parameter, or to all. These functions skip frozen parameters.
  void add_state(std::size_t param, const std::string& key, at::ScalarType dtype = at::kFloat);
  void add_state(const std::string& key, at::ScalarType dtype = at::kFloat);
  /// Adds a zero state that has the parameter's rows, each of shape `row_shape`.
  void add_row_state(std::size_t param, const std::string& key, at::IntArrayRef row_shape,
                     at::ScalarType dtype = at::kFloat);
  /// Adds a zero state that every rank stores as a whole.
  void add_replicated_state(std::size_t param, const std::string& key, at::IntArrayRef shape,
                            at::ScalarType dtype = at::kFloat);
  /// Adds a zero state whose rows on this rank are those given by `state`; allocates its values.
  void add_rows(std::size_t param, OptimizerState state, at::ScalarType dtype);
  void add_child_state(std::size_t param, const std::string& key, at::ScalarType dtype);
  /// Adds host tensors that are constant, but that readers of the states need (such as code tables).
  void add_constant(std::size_t param, const std::string& key, const at::Tensor& values);
  /// \return the states named `key` of some parameters
  std::vector<at::Tensor> states(std::string_view key, const std::vector<std::size_t>& params) const;
  int rank() const { return input_.ranks == nullptr ? 0 : input_.ranks->rank(); }
  int num_ranks() const { return input_.ranks == nullptr ? 1 : input_.ranks->size(); }
  /// Sums a tensor in place over the ranks that share the parameters' rows.
  void sum_over_ranks(const at::Tensor& values) const;
  /// All-to-all of parts of matrices, to gather whole matrices and to return them: part k of [ranks, ...] goes to rank
  /// k. \return the received parts, indexed by rank
  at::Tensor exchange(const at::Tensor& parts) const;
  /// Selects members of a group and their parameters. \param members  indices into params
  static std::pair<UpdateGroup, std::vector<std::size_t>> choose(const UpdateGroup& group,
                                                                 const std::vector<std::size_t>& params,
                                                                 const std::vector<std::size_t>& members);
  /// Applies AdamW to some members of a group. \param keys  names of the two moments
  void adamw_update(const UpdateGroup& group, const std::vector<std::size_t>& params,
                    const std::vector<std::size_t>& members, const std::array<std::string, 2>& keys) const;
  /// \param group  filled, except for the states
  virtual void update(const UpdateGroup& group, const std::vector<std::size_t>& params) = 0;

 private:
  std::vector<std::size_t> all_params() const;
  void step_group(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, UpdateGroup group,
                  bool decay);
  void mask_gradients(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients) const;

  OptimizerInput input_;
  std::vector<std::vector<OptimizerState>> states_;  ///< indexed by parameter
  std::int64_t steps_ = 0;
  bool choosing_child_ = false;
};

/// A row of the table of optimizers: whatever the program knows about an optimizer beside its class.
struct OptimizerType {
  std::string_view name;
  std::vector<std::string_view> aliases = {};  ///< names of the Hugging Face trainer
  std::vector<std::string_view> options = {};  ///< options that not every optimizer has
  std::vector<std::string> betas = {};         ///< of its authors; empty: those of every run
  /// One launch of a kernel updates many parameters: by a decision made on the device, and from bf16 gradients, too.
  bool on_device = false;
  std::unique_ptr<Optimizer> (*make)(OptimizerInput) = nullptr;
  void (*check)(const OptimizerOptions&) = nullptr;  ///< \throws RequestError about options; may be null

  bool has(std::string_view option) const;
};
/// In the order of the help.
const std::vector<OptimizerType>& optimizer_types();
/// All names and aliases: "adamw, lion, adamw_torch".
std::string optimizer_choices();
/// Finds an optimizer by its name or an alias. \throws RequestError naming the choices
const OptimizerType& optimizer_type(std::string_view name, std::string_view option = "optimizer");
std::unique_ptr<Optimizer> make_optimizer(OptimizerInput input);
/// OptimizerType::on_device, unless Child-Tuning changes the gradients first.
bool takes_bf16_gradients(const OptimizerOptions& options);

/// An option of OptimizerOptions that not every optimizer has (OptimizerType::options).
struct OptimizerOption {
  using TakeWord = std::function<void(const std::string&)>;  ///< \throws RequestError naming the choices
  std::string_view name;                                     ///< "momentum" for --momentum
  std::string_view owner;                                    ///< the optimizer that refusals name
  const char* help = "";
  const char* default_text = "";  ///< for the help, where it is not the value
  /// Where the value is. A double is at least 0 and less than 1, a std::int64_t at least 1.
  std::variant<bool*, double*, std::optional<double>*, std::int64_t*, std::optional<at::ScalarType>*, TakeWord> value;
  std::string choices = "";     ///< of a TakeWord: "torch, transformers"
  bool given = false;           ///< the value is not the default
  bool has_underscores = true;  ///< --a_b is --a-b
};
/// In the order of the help, with values in `options`, which must outlive the result.
std::vector<OptimizerOption> own_options(OptimizerOptions& options);

/// Chen et al., 2023: p *= 1 - lr wd; p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.
ElementwiseUpdate lion_update(const UpdateGroup& group, const std::vector<at::Tensor>& exp_avg,
                              const OptimizerOptions& options);

std::unique_ptr<Optimizer> make_adafactor(OptimizerInput input);
void check_adafactor(const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_blockwise(OptimizerInput input);
std::unique_ptr<Optimizer> make_muon(OptimizerInput input);

}  // namespace fsdp
