#pragma once
// Which tensors of a source fill a model's master weights and its optimizer's state: found and checked before any is
// read.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/model/adapter_plan.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/training/state/checkpoint.hpp"

namespace fsdp {

/// Elements of tensor number `tensor`, from `first` on.
struct TensorOffset {
  std::size_t tensor = 0;
  std::uint64_t first = 0;
};

/// The state that an optimizer looks for in a checkpoint.
struct RequestedStates {
  /// A state tensor of a parameter.
  struct Tensor {
    std::string key;
    Shape shape;
    bool is_codes = false;  ///< of 8 bits, not numbers of a floating-point type
  };
  std::vector<std::vector<Tensor>> params;  ///< by index in the model's parameters
  std::vector<bool> has_step;               ///< by parameter: a "step" too
  std::string kind = "adamw";               ///< OptimizerType::name
  std::string optimizer;                    ///< for messages
};
RequestedStates wish_of(const Optimizer& optimizer);

/// State of an optimizer.
struct OptimizerPlan {
  bool found = false;
  /// As RequestedStates::params; nothing: the parameter was frozen, or its state starts at zero.
  std::vector<std::vector<std::optional<TensorOffset>>> states;
  std::int64_t steps = 0;
  std::string remark;  ///< what the user should know about it; "" nothing
  bool child = false;  ///< Child-Tuning's D: its masks are there, or what has been measured for them
};

struct LoadPlan {
  std::filesystem::path path;                 ///< for messages
  std::vector<std::size_t> params;            ///< numbers of the model's parameters that are filled
  std::vector<std::size_t> weights;           ///< their tensors
  std::map<std::size_t, std::size_t> copies;  ///< of weights that are stored again under a tied name: which, and where
  std::map<std::size_t, StoredNf4> stored;    ///< weights that are there in 4 bits
  OptimizerPlan optimizer;
  bool must_be_finite = false;  ///< refuse weights that are not, rather than compute with them
};

/// True for the types in which weights and optimizer state may be stored: float64, float32, bfloat16, float16.
bool is_loadable(DType dtype);

/// Names, shapes and types are checked. \throws FormatError naming tensor, shape and what was expected
LoadPlan plan_weights(const Checkpoint& checkpoint, const ModelConfig& config);

/// Adapters and what is kept with them, of a checkpoint of ours. \param table  the model's, followed by adapters
LoadPlan plan_adapters(const Checkpoint& checkpoint, const std::vector<ParameterSpec>& table);
/// The same of a folder as peft writes it. \param table  its adapters are those of the plan's targets
LoadPlan plan_adapters(const AdapterPlan& adapter, const std::vector<ParameterSpec>& table);

/// State by parameter name (torch's FSDP and get_state_dict, nested or flattened) or by number
/// (optimizer.state_dict()). State of another optimizer is not found; the remark says so.
/// \throws FormatError where state is there and does not fit, or where a checkpoint of ours lacks some
OptimizerPlan plan_optimizer_state(const Checkpoint& checkpoint, const ModelConfig& config,
                                   const std::vector<ParameterSpec>& table, const RequestedStates& wish);

/// The same, and the optimizer made ready for it: with Child-Tuning's D, for masks where the checkpoint has all of
/// them, else for what was measured for them.
OptimizerPlan plan_optimizer_state(const Checkpoint& checkpoint, const ModelConfig& config,
                                   const std::vector<ParameterSpec>& table, Optimizer& optimizer);

/// Masks of Child-Tuning's D are in it.
bool has_child(const Checkpoint& checkpoint);

/// Plans the load of a directory in Hugging Face's layout, as open_model_source() opens it. \param quantize  how
/// matrices will be kept \throws FormatError also on a tensor that has no place in the model
LoadPlan plan_weights(const Source& source, const std::filesystem::path& directory, const ModelConfig& config,
                      const QuantizeConfig& quantize = {});

}  // namespace fsdp
