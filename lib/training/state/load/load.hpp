#pragma once
// The one way into a model's master weights: any world size and strategy reads what any other, or any program, wrote.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/checkpoints/transform/grow_vocabulary.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/state/load/plan_load.hpp"

namespace fsdp {

/// \throws FormatError when the checkpoint holds adapters alone and a whole model is wanted, or the reverse
void require_kind(const Checkpoint& checkpoint, bool adapters_only);

/// Reads this rank's rows of every parameter, and with `optimizer` those of its state and the number of steps; then
/// publishes the weights. Collective: what the ranks read together is compared with the checkpoint's checksums, and all
/// fail together. A failure leaves weights and state partly filled and nothing published.
/// \param optimizer  null: parameters alone. State that the checkpoint has none of stays as it is
/// \return where its state was found
/// \throws FormatError naming file and tensor; a head that is not the token embedding it is tied to is refused too
OptimizerPlan load_checkpoint(ModelRuntime& runtime, Optimizer* optimizer, const Checkpoint& checkpoint);

/// Weights to start from, as Hugging Face stores them: DIR/model.safetensors or its index. (Of a GPT-2, whose matrices
/// are transposed, a buffer at a time.) Collective, as load_checkpoint(). Under adapters the runtime then knows its
/// base. Where DIR/config.json has fewer ids than the runtime's model, embedding and head get rows for the others.
void load_weights(ModelRuntime& runtime, const std::filesystem::path& directory, NewRows start = NewRows::mean);

/// Loads the base weights that the adapters of a checkpoint belong to. \throws FormatError when `base` holds others
void load_base(ModelRuntime& runtime, const BaseWeights& base, const std::filesystem::path& checkpoint);

/// Adapters as peft writes them: what plan_adapter() says of DIR. Collective, as load_checkpoint().
/// \return AdapterPlan::remarks
std::vector<std::string> load_adapter(ModelRuntime& runtime, const std::filesystem::path& directory);

}  // namespace fsdp
