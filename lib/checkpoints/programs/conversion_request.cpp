#include "lib/checkpoints/programs/conversion_request.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/programs/megatron/megatron_source.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {
namespace {

/// Parses a model configuration with our fields or with those of Hugging Face's config.json.
ModelConfig parse_model_config(const nlohmann::json& json, const std::string& origin) {
  return json.contains("model_type") ? model_config_from_hf(json, origin) : model_config_from_json(json, origin);
}

}  // namespace

bool SourceChanges::changes_tensors() const {
  return select.changes_anything() || !merge_adapter.empty() || dequantize || quantize.enabled() || dtype ||
         map.value_or(NameMap::none) != NameMap::none;
}

std::optional<ModelConfig> known_model(const Source& source, const SourceChanges& changes) {
  const bool is_read = source.info().format == kMegatronFormat;  // model_config() has it
  if (!changes.model_config.empty() && !is_read) {
    std::filesystem::path file = changes.model_config;
    if (std::filesystem::is_directory(file)) file /= "config.json";
    const auto text = read_text_file(file, 1u << 20);
    try {
      return parse_model_config(parse_json(text, file.string()), file.string());
    } catch (const nlohmann::json::exception& error) {
      throw FormatError(file.string() + ": no JSON: " + error.what());
    }
  }
  if (const auto config = source.model_config(); !config.is_null())
    return parse_model_config(config, (source.info().directory / "run.json").string());
  const auto run = run_in_values(source);
  if (!run.contains("model")) return std::nullopt;
  return parse_model_config(run["model"], source.info().named_file().string() + ": run.model");
}

ModelConfig config_after_merge(ModelConfig config, const Source& source, const SourceChanges& changes) {
  if (changes.merge_adapter.empty()) return config;
  if (source.info().unties_head) config.tie_word_embeddings = false;
  for (const auto& tensor : source.tensors()) {
    const bool is_embedding = tensor.name == "embedding.word_embeddings.weight" ||  // Megatron-core's
                              std::ranges::find(token_embeddings(), tensor.name) != token_embeddings().end();
    if (is_embedding && tensor.shape.size() == 2) config.vocab_size = tensor.shape[0];
  }
  return config;
}

void keep_model_alone(const Source& source, const Logger& log, SourceChanges& changes, const std::string& why) {
  if (!changes.select.model_only && !source.values().empty())
    log.info(why + ": optimizer state, counters and other values are left out");
  changes.select.model_only = true;
}

}  // namespace fsdp
