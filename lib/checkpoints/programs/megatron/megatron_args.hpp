#pragma once
// The model as args of Megatron-LM describe it, beside transformers' config.json.
// Source: Megatron-LM megatron/training/arguments.py (core_transformer_config_from_args), megatron-core 0.19
// core/models/common/embeddings/rotary_pos_embedding.py.
#include <nlohmann/json_fwd.hpp>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// The fields of config.json that args tell, without vocab_size: args know it with padding only.
/// \throws FormatError naming an argument that changes the model into one that no dense Llama or Qwen is
nlohmann::json config_fields_of_args(const PickleNode& args);

/// False for rotary positions whose scaling args cannot say.
bool args_can_say_rope(const ModelConfig& config);

/// Writes args of a model as an argparse.Namespace. \param dtype  of the weights
/// \throws RequestError on a model that Megatron-core's GPTModel does not have
void write_megatron_args(PickleWriter& pickle, const ModelConfig& config, DType dtype, bool has_optimizer);

}  // namespace fsdp
