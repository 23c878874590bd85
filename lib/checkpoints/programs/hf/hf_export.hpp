#pragma once
// Makes the files that a model's folder has beside its tensors: config.json, the tokenizer's files, the chat template.
// A GGUF file takes the same.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"

namespace fsdp {

struct HfConfigFile {
  std::string name;  ///< for messages
  nlohmann::json json;
};

/// config.json, or another file of this kind, as it will be written; nothing when there is none. \throws FormatError
/// when it is no JSON object
std::optional<HfConfigFile> config_of(const HfTargetOptions& hf, const std::string& name = "config.json");

/// The directories whose small files belong to the model.
HfTargetOptions carried_beside(const Conversion& options, const Source& original);

/// The directory of the tokenizer, empty for GPT-2's own; nothing when there is no tokenizer.
std::optional<std::filesystem::path> tokenizer_directory(const HfTargetOptions& hf);

/// The tokenizer goes along that the options name, else the one that belongs to the adapter or the input.
void add_tokenizer(HfTargetOptions& hf, const std::optional<ModelConfig>& model, const Source& original,
                   const Source& source, const Conversion& options, const Logger& log);

/// The template that an adapter or a run was trained with, which the tokenizer need not have; "" when none is known.
std::string trained_template(const Conversion& options, const Source& original, const Logger& log);

/// FormatWriter::adapt() of Hugging Face's format: drops what the format cannot hold, and maps a minGPT to the names of
/// GPT-2 unless the changes say names.
void adapt_to_hf(const Source& original, const Conversion& options, SourceChanges& changes, const Logger& log);

/// FormatWriter::make() of Hugging Face's format. A tied head gets the name of the missing embedding.
std::unique_ptr<Target> make_hf_target(WriteRequest& request);

}  // namespace fsdp
