#pragma once
// Sizes of well-known models, for planning without their files.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

struct KnownModel {
  std::string name;    ///< on the Hugging Face hub: "codellama/CodeLlama-7b-hf"
  ModelConfig config;  ///< as of its config.json
};

/// Finds a model by its name on the hub, with or without the owner before it, the "Meta-" of Llama 3 and the "-hf" at
/// its end; upper and lower case are one. The variants for instructions and chats (-Instruct, -chat, -it) have the
/// sizes of their base. \return nothing for other names
std::optional<KnownModel> find_known_model(std::string_view name);

/// The names of all models, in the order of the table.
std::vector<std::string> known_model_names();

}  // namespace fsdp
