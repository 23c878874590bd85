#pragma once
// Adapters as files that peft opens.
#include <filesystem>
#include <string>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// DIR/adapter_model.safetensors and DIR/adapter_config.json, made where DIR is not there. Collective: the first rank
/// writes what all have. \param base  name or folder of the model, for the configuration. \throws IoError, on all ranks
void save_adapter(ModelRuntime& runtime, const std::filesystem::path& directory, const std::string& base);

}  // namespace fsdp
