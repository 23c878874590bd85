#include "lib/models/config/model_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config_fields.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

/// Rejects absurd sizes before they exhaust memory.
void require_in(std::int64_t value, std::int64_t most, const char* what) {
  if (value < 1) throw RequestError(std::string(what) + " is " + std::to_string(value) + ", it must be at least 1");
  if (value > most) {
    throw RequestError(std::string(what) + " is " + std::to_string(value) + ", it can be at most " +
                       std::to_string(most));
  }
}

using config_detail::field;

constexpr std::array<std::pair<const char*, std::string ModelConfig::*>, 2> kTokenIds{
    {{"bos_token_id", &ModelConfig::bos_token_id}, {"eos_token_id", &ModelConfig::eos_token_id}}};

/// Replaces the ids that `json` names.
void read_token_ids(ModelConfig& config, const nlohmann::json& json, const std::string& source) {
  for (const auto& [name, member] : kTokenIds) {
    const auto found = json.find(name);
    if (found == json.end()) continue;
    const auto is_id = [](const nlohmann::json& id) { return id.is_number_integer(); };
    if (!found->is_null() && !is_id(*found) && !(found->is_array() && std::ranges::all_of(*found, is_id)))
      throw FormatError(source + ": field '" + name + "' is " + json_text(*found) +
                        ", expected the id of a token, a list of ids, or null");
    config.*member = json_text(*found);
  }
}

/// Calls read() with the JSON of a file. \throws FormatError naming the file
template <typename Read>
auto read_fields(const std::filesystem::path& path, const Read& read) {
  const auto text = read_text_file(path, 1u << 20);
  try {
    return read(parse_json(text, path.string()));
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), error.byte, "not valid JSON");
  } catch (const nlohmann::json::exception& error) {  // e.g. 1e999, which exceeds a double
    throw FormatError(path.string() + ": is no configuration of a model: " + error.what());
  }
}

void write_token_ids(const ModelConfig& config, nlohmann::json& json) {
  for (const auto& [name, member] : kTokenIds)
    if (const auto& text = config.*member; !text.empty()) json[name] = parse_json(text, name);
}

constexpr config_detail::SizeNames kOptions{"num-layers",      "num-heads",  "embed-size",
                                            "ffn-hidden-size", "vocab-size", "seq-len"};

/// \throws RequestError
void check_sizes(const ModelConfig& config, const config_detail::SizeNames& names) {
  require_in(config.num_layers, 1 << 14, names.layers);
  require_in(config.num_heads, 1 << 14, names.heads);
  require_in(config.embed_size, 1 << 20, names.embed);
  require_in(config.ffn_hidden_size, 1 << 24, names.ffn);
  require_in(config.vocab_size, 1 << 24, names.vocab);
  require_in(config.block_size, 1 << 24, names.positions);
  if (config_detail::family_of(config).kind->has_key_heads) {
    require_in(config.kv_heads(), 1 << 14, "num_key_value_heads");
    if (config.num_heads % config.kv_heads() != 0) {
      throw RequestError("num_attention_heads " + std::to_string(config.num_heads) +
                         " is not divisible by num_key_value_heads " + std::to_string(config.kv_heads()) +
                         ": every head of keys serves equally many heads of queries");
    }
    if (config.head_size != 0) require_in(config.head_size, 1 << 16, "head_dim");
    require_in(config.num_heads * config.head_width(), 1 << 22, "num_attention_heads times head_dim");
  }
  if (config.head_size == 0 && config.embed_size % config.num_heads != 0) {
    throw RequestError(fmt::format("{} {} is not divisible by {} {}: every head needs the same width", names.embed,
                                   config.embed_size, names.heads, config.num_heads),
                       Remedy::of_widths);
  }
  if (config.dropout < 0 || config.dropout >= 1) {
    throw RequestError("dropout is " + std::to_string(config.dropout) + ", it must be in [0, 1)");
  }
}

/// The ids of tokens apart.
ModelConfig sizes_from_json(const nlohmann::json& json, const std::string& source) {
  const auto type = config_detail::field_or(json, "model_type", std::string("mingpt"), source);
  if (const auto* family = config_detail::find_family(type)) return family->kind->read(*family, json, source);
  std::vector<std::string_view> known;
  for (const auto& family : config_detail::families()) known.push_back(family.type);
  if (json.contains("text_config"))
    throw FormatError(fmt::format(
        "{}: model_type '{}' has its language model in text_config, which is not supported: save that model by itself, "
        "as one of {}",
        source, type, fmt::join(known, ", ")));
  throw FormatError(
      fmt::format("{}: model_type '{}' is not supported; supported: {}", source, type, fmt::join(known, ", ")));
}

/// Weights are given in place of the folder that they are in.
void refuse_other_file(const std::filesystem::path& path) {
  if (is_gguf_file(path))
    throw FormatError(
        fmt::format("{}: is a GGUF file, and a folder with config.json and weights was expected", path.string()),
        {Remedy::folder_of_gguf, path.string()});
  const auto suffix = path.extension();
  if (suffix == ".safetensors" || suffix == ".pt" || suffix == ".pth" || suffix == ".bin")
    throw FormatError(path.string() + ": holds weights; the folder with config.json and the weights was expected");
}

void refuse_checkpoint(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory / "run.json", error) &&
      !std::filesystem::exists(directory / ".metadata", error))
    return;
  throw MissingInput(directory.string() + ": is a checkpoint, not a model's folder with config.json",
                     Remedy::checkpoint_as_model);
}

}  // namespace

void ModelConfig::validate() const { check_sizes(*this, kOptions); }

void config_detail::validate(const ModelConfig& config, const std::string& source) {
  try {
    check_sizes(config, family_of(config).kind->sizes);
  } catch (const RequestError& error) {
    throw FormatError(source + ": " + error.what());
  }
}

ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object()) throw FormatError(source + ": a JSON object was expected");
  if (const auto text = text_model_config(json, source); !text.is_null()) {
    ModelConfig outer;
    read_score_head(outer, json, source);
    if (outer.has_scores())
      throw FormatError(source +
                        ": is a multimodal model that scores texts, which is not supported: save its language model by "
                        "itself, as Gemma3TextForSequenceClassification");
    return model_config_from_json(text, source + ", text_config");
  }
  auto config = sizes_from_json(json, source);
  read_token_ids(config, json, source);
  read_score_head(config, json, source);
  return config;
}

nlohmann::json text_model_config(const nlohmann::json& json, const std::string& source) {
  constexpr const char* kText = "gemma3_text";
  if (!json.is_object() || json.value("model_type", nlohmann::json()) != "gemma3") return nullptr;
  const auto nested = json.find("text_config");
  if (nested != json.end() && !nested->is_null() && !nested->is_object())
    throw FormatError(source + ": field 'text_config' is " + json_text(*nested) + ", an object was expected");
  // Defaults of transformers for fields that the file leaves out.
  nlohmann::json text{{"vocab_size", 262208},    {"hidden_size", 2304},      {"intermediate_size", 9216},
                      {"num_hidden_layers", 26}, {"num_attention_heads", 8}, {"model_type", kText}};
  for (const auto* name : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "torch_dtype", "dtype"})
    if (json.contains(name)) text[name] = json.at(name);
  if (nested != json.end() && nested->is_object()) text.update(*nested);
  text["architectures"] = {"Gemma3ForCausalLM"};
  if (text.at("model_type") != kText)
    throw FormatError(source + ": text_config has model_type " + json_text(text.at("model_type")) + ", " + kText +
                      " is supported");
  return text;
}

nlohmann::json model_config_to_json(const ModelConfig& config) {
  auto json = config_detail::family_of(config).kind->write(config);
  write_token_ids(config, json);
  write_score_head(config, json);
  return json;
}

ModelConfig read_model_config(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(directory_or_file, ignored);
  const auto path = is_file ? directory_or_file : directory_or_file / "config.json";
  if (is_file) refuse_other_file(path);
  if (!is_file && !std::filesystem::exists(path, ignored)) refuse_checkpoint(directory_or_file);
  auto config =
      read_fields(path, [&](const nlohmann::json& json) { return model_config_from_json(json, path.string()); });
  config.score_is_new = false;  // what a run notes of its base; weights beside a file have all that it describes
  const auto generation = path.parent_path() / "generation_config.json";
  if (path.filename() == "config.json" && std::filesystem::exists(generation, ignored))
    read_fields(generation, [&](const nlohmann::json& json) { read_token_ids(config, json, generation.string()); });
  return config;
}

std::vector<ParameterSpec> parameter_table(const ModelConfig& config) {
  const auto& kind = *config_detail::family_of(config).kind;
  if (!config.has_scores()) return kind.parameters(config);
  auto without_head = config;
  without_head.tie_word_embeddings = true;
  auto table = kind.parameters(without_head);
  table.push_back({kScoreWeight, {config.outputs(), config.embed_size}});
  return table;
}

std::string head_parameter(const ModelConfig& config) {
  if (config.has_scores()) return kScoreWeight;
  const auto& facts = facts_of(config);
  return std::string(facts.is_always_tied || config.tie_word_embeddings ? facts.embedding : facts.head);
}

std::vector<std::pair<std::string, std::string>> tied_names(const ModelConfig& config) {
  const auto& facts = facts_of(config);
  if (config.has_scores() || (!facts.is_always_tied && !config.tie_word_embeddings)) return {};
  return {{std::string(facts.head), std::string(facts.embedding)}};
}

std::string tied_name_of(const ModelConfig& config, const std::string& name) {
  for (const auto& [alias, original] : tied_names(config))
    if (original == name) return alias;
  if (!config.head_starts_as_embedding) return "";
  const auto& facts = facts_of(config);
  if (name == facts.head) return std::string(facts.embedding);
  if (name == facts.embedding) return std::string(facts.head);
  return "";
}

std::int64_t num_parameters(const std::vector<ParameterSpec>& table) {
  std::int64_t total = 0;
  for (const auto& spec : table) {
    if (spec.stands_for >= 0) {
      total += spec.stands_for;
      continue;
    }
    std::int64_t n = 1;
    for (const auto size : spec.shape) n *= size;
    total += n;
  }
  return total;
}

nlohmann::json hf_config(const ModelConfig& config) {
  const auto& family = config_detail::family_of(config);
  const auto write = family.kind->write_for_transformers;
  auto json = write != nullptr ? write(config) : family.kind->write(config);
  write_token_ids(config, json);
  json["architectures"] = {std::string(family.architecture)};
  json["initializer_range"] = 0.02;
  write_score_head_for_transformers(config, family.architecture, json);
  return json;
}

ModelConfig model_config_from_hf(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object()) throw FormatError(source + ": a JSON object was expected");
  field<std::string>(json, "model_type", source);  // optional in our own files, required in Hugging Face's
  return model_config_from_json(json, source);
}

}  // namespace fsdp
