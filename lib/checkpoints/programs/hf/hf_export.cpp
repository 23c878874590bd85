#include "lib/checkpoints/programs/hf/hf_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/gguf/gguf.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/source/main_dtype.hpp"
#include "lib/checkpoints/transform/model_tensors.hpp"
#include "lib/checkpoints/transform/quantize.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/score_head.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/files/padding.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"

namespace fsdp {

std::optional<HfConfigFile> config_of(const HfTargetOptions& hf, const std::string& name) {
  const auto parsed = [](const std::string& text, const std::string& file) {
    try {
      auto config = parse_json(text, file);
      if (config.is_object()) return HfConfigFile{file, std::move(config)};
    } catch (const nlohmann::json::parse_error& error) {
      throw FormatError(file, error.byte, "not valid JSON");
    }
    throw FormatError(file + ": is no JSON object, as a model's configuration must be");
  };
  if (const auto made = hf.files.find(name); made != hf.files.end()) return parsed(made->second, made->first);
  for (const auto& directory : hf.carry_from) {
    const auto file = directory / name;
    std::error_code error;
    if (std::filesystem::exists(file, error)) return parsed(read_text_file(file, 1u << 20), file.string());
  }
  return std::nullopt;
}

HfTargetOptions carried_beside(const Conversion& options, const Source& original) {
  HfTargetOptions hf;
  if (!options.config_from.empty()) {
    if (!std::filesystem::is_directory(options.config_from)) {
      throw MissingInput(options.config_from + ": is no directory with the files that go along",
                         Remedy::of_config_from);
    }
    hf.carry_from.emplace_back(options.config_from);
  }
  // A file that holds its run says itself which model it is; a config.json that lies beside it may be of another one.
  const auto run = run_in_values(original);
  const bool is_beside = original.info().files.size() == 1 && run.is_object() && run.contains("model");
  const bool has_files = !original.info().directory.empty() && original.info().format != kGgufMagic;
  if (has_files && !is_beside) hf.carry_from.push_back(original.info().directory);
  return hf;
}

std::optional<std::filesystem::path> tokenizer_directory(const HfTargetOptions& hf) {
  if (hf.tokenizer_from) return *hf.tokenizer_from;
  const auto found = std::ranges::find_if(hf.carry_from, has_tokenizer);
  return found == hf.carry_from.end() ? std::nullopt : std::optional(*found);
}

namespace {

/// True for the tensors of scales of a 4-bit matrix.
bool is_scale(std::string_view name) {
  return name.ends_with(".absmax") || name.ends_with(".nested_absmax") || name.ends_with("quant_map");
}

/// The type for config.json. The scales of 4-bit matrices do not count.
std::string dtype_of_export(const Source& source) {
  return main_dtype(source, [](const SourceTensor& tensor) {
    return is_scale(tensor.name) ? std::uint64_t{0} : tensor.size_bytes();
  });
}

/// The model_type of the config.json of a directory; nothing when there is no config.json.
std::optional<std::string> model_type_of(const std::filesystem::path& directory) {
  std::error_code error;
  const auto file = directory / "config.json";
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  const auto text = read_text_file(file, 1u << 20);
  const auto json = parse_json_or_discard(text, file.string());
  const bool has_type = json.is_object() && json.contains("model_type") && json["model_type"].is_string();
  return has_type ? json["model_type"].get<std::string>() : "";
}

/// Adds config.json unless that of the input or of --config-from is carried along. That one is not used when it says
/// GPT-2 for a minGPT that keeps its names and matrices, or the reverse.
void add_config(HfTargetOptions& hf, const std::optional<ModelConfig>& model, const SourceChanges& input,
                const Source& source, const Logger& log) {
  const auto conv1d_type = model ? facts_of(*model).conv1d_type : std::string_view();
  const bool keeps_names = input.map == NameMap::none || (!input.map && !input.select.rename.empty());
  for (const auto& directory : hf.carry_from) {
    const auto type = model_type_of(directory);
    if (!type) continue;
    if (conv1d_type.empty() || (*type == conv1d_type) != keeps_names) return;
    break;
  }
  if (model) {
    auto config = !conv1d_type.empty() && keeps_names ? model_config_to_json(*model) : hf_config(*model);
    config["torch_dtype"] = dtype_of_export(source);
    hf.files["config.json"] = json_text(config, 2) + "\n";
    return;
  }
  log.warning("no config.json is known, without which transformers does not open the output", Remedy::config_json);
}

/// The fields that a head of scores adds to a config.json, which may be that of the language model that a run began
/// with, or that an adapter was merged into; null without such a head.
nlohmann::json score_fields(const std::optional<ModelConfig>& known, const nlohmann::json& config,
                            const std::string& file, const Source& source, const Conversion& options) {
  const auto score = std::ranges::find(source.tensors(), kScoreWeight, &SourceTensor::name);
  const bool is_known = known && known->has_scores();
  const bool is_merged = !options.changes.merge_adapter.empty() && score != source.tensors().end();
  if (!is_known && (!is_merged || score->shape.size() != 2)) return nullptr;
  auto model = is_known ? *known : model_config_from_json(config, file);
  if (!model.has_scores()) add_score_head(model, unnamed_labels(score->shape[0]), model.pad_token_id);
  if (model.pad_token_id < 0) {
    auto name = options.tokenizer;
    if (name.empty()) name = tokenizer_of(options.input, nullptr, options.changes.merge_adapter).name;
    const auto id = name.empty() ? std::nullopt : padding_of(name, *open_tokenizer(name));
    if (id) model.pad_token_id = *id;
  }
  const auto whole = hf_config(model);
  nlohmann::json fields;
  for (const auto* name : {"architectures", "id2label", "label2id", "pad_token_id"}) {
    if (whole.contains(name)) fields[name] = whole[name];
  }
  return fields;
}

/// Updates config.json for the written tensors: their type, whether matrices are in 4 bits, and whether an adapter has
/// parted head and embedding. Spells the rope
/// parameters of transformers 5 so that transformers 4 reads them, too.
void adapt_config(HfTargetOptions& hf, const std::optional<ModelConfig>& model, const Conversion& options,
                  const SourceChanges& input, const Source& source) {
  auto file = config_of(hf);
  if (!file) return;
  auto& config = file->json;
  const bool has_images = std::ranges::any_of(
      source.tensors(), [](const auto& tensor) { return tensor.name.find("vision_tower.") != std::string::npos; });
  auto text = has_images ? nlohmann::json() : text_model_config(config, file->name);
  const bool is_text = !text.is_null();
  if (is_text) config = std::move(text);
  const bool is_gpt2 = config.value("model_type", nlohmann::json()) == "gpt2";
  if (is_gpt2 && !conv1d_layout(source).value_or(true))
    throw RequestError("config.json says gpt2, whose matrices are [in, out], and these are [out, in]",
                       Remedy::map_to_gpt2);
  const bool changed = spell_rope_for_all(config, file->name) || is_text;
  const auto before = config;
  if (const auto fields = score_fields(model, config, file->name, source, options); !fields.is_null())
    config.update(fields);
  if (input.dequantize || !input.merge_adapter.empty()) config.erase("quantization_config");
  if (source.info().unties_head) config["tie_word_embeddings"] = false;
  for (const auto& tensor : source.tensors()) {
    const bool is_embedding = std::ranges::find(token_embeddings(), tensor.name) != token_embeddings().end();
    if (is_embedding && tensor.shape.size() == 2 && config.contains("vocab_size") &&
        config["vocab_size"] != tensor.shape[0])
      config["vocab_size"] = tensor.shape[0];
  }
  const auto dtype = dtype_of_export(source);
  const auto compute = nlohmann::json::json_pointer("/quantization_config/bnb_4bit_compute_dtype");
  if (input.dtype && config.contains(compute)) config[compute] = dtype;
  if (input.quantize.enabled())
    config["quantization_config"] = hf_quantization_config(input.quantize, dtype_from_torch(dtype));
  if (input.dtype || config != before)
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;  // newer and older name in transformers
  if (changed || config != before) hf.files["config.json"] = json_text(config, 2) + "\n";
}

/// Warns where the tokenizer that goes along, that of `directory`, is another one than the model was trained with.
void warn_of_other_tokenizer(const Conversion& options, const OwnTokenizer& own, const std::filesystem::path& directory,
                             const Logger& log) {
  const auto& trained = options.changes.merge_adapter.empty() ? options.input : options.changes.merge_adapter;
  const bool is_folder = !own.name.empty() && own.name != kBuiltInTokenizer;
  if (is_folder && !same_tokenizer_files(own.name, directory))
    log.warning(fmt::format("{}: its tokenizer is that of {}, and the one of {} goes along", trained, own.name,
                            directory.string()));
}

/// Warns of a merge that brings rows for new tokens where the tokenizer that has them is not known.
void warn_of_lost_tokens(const Conversion& options, const Source& original, const Source& source,
                         const OwnTokenizer& own, const Logger& log) {
  const auto rows = [](const Source& of) -> std::int64_t {
    for (const auto& tensor : of.tensors())
      if (std::ranges::find(token_embeddings(), tensor.name) != token_embeddings().end() && tensor.shape.size() == 2)
        return tensor.shape[0];
    return 0;
  };
  if (options.changes.merge_adapter.empty() || rows(source) <= rows(original)) return;
  log.warning(
      fmt::format(
          "{}: has rows for {} tokens, {} for {}, and {}: the tokenizer that goes along does not know the new tokens",
          options.changes.merge_adapter, rows(source), options.input, rows(original),
          own.gone.empty() ? "has no tokenizer" : "its run's tokenizer is no longer in " + own.gone),
      Remedy::config_from_new_tokens);
}

/// Adds tokenizer.json where a tokenizer.model alone goes along, so that readers of the export need no sentencepiece
/// and give the ids of training.
void add_tokenizer_json(HfTargetOptions& hf, const Logger& log) {
  const auto directory = tokenizer_directory(hf);
  if (!directory || directory->empty() || !is_sentencepiece_alone(*directory)) return;
  auto fast = fast_files_of_sentencepiece(*directory);
  if (!fast.missing.empty())
    return log.info("no tokenizer.json goes along with tokenizer.model: " + fast.missing +
                    "; transformers needs sentencepiece and protobuf to open it");
  for (auto& [name, text] : fast.files) hf.files.try_emplace(name, std::move(text));
}

/// Adds the end mark of an adapter's tokenizer to the ends of what the merged model generates, as transformers does
/// when it trains the adapter (trainer_utils.py, align_special_tokens): the base's files do not know it.
void add_end_mark(HfTargetOptions& hf, const Conversion& options, const Logger& log) {
  std::error_code error;
  const bool is_of_adapter = !options.changes.merge_adapter.empty() && hf.tokenizer_from &&
                             !hf.tokenizer_from->empty() &&
                             !std::filesystem::equivalent(*hf.tokenizer_from, options.input, error);
  if (!is_of_adapter) return;
  std::optional<std::int32_t> end;
  try {
    end = open_tokenizer(hf.tokenizer_from->string())->eos_id();
  } catch (const Error& problem) {
    log.warning(
        fmt::format("the end mark of the adapter's tokenizer is not added to eos_token_id: {}", problem.what()));
  }
  for (const char* name : {"config.json", "generation_config.json"}) {
    auto file = config_of(hf, name);
    if (!end || !file) continue;
    const auto old = file->json.value("eos_token_id", nlohmann::json());
    const bool is_known = old == *end || (old.is_array() && std::ranges::find(old, nlohmann::json(*end)) != old.end());
    if (is_known) continue;
    auto ends = nlohmann::json::array({*end});
    if (old.is_number()) ends.push_back(old);
    if (old.is_array()) ends.insert(ends.end(), old.begin(), old.end());
    file->json["eos_token_id"] = ends.size() == 1 ? ends.front() : ends;
    hf.files[name] = json_text(file->json, 2) + "\n";
  }
}

/// Renames the head of a tied model without an embedding to the embedding, which is the name that transformers writes.
std::shared_ptr<const Source> under_embedding_name(std::shared_ptr<const Source> source, const HfTargetOptions& hf) {
  const auto file = config_of(hf);
  if (!file || !ties_word_embeddings(file->json)) return source;
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(source->tensors(), [&](const auto& tensor) { return tensor.name == name; });
  };
  if (!has(kTiedHead) || std::ranges::any_of(token_embeddings(), has)) return source;
  const auto type = file->json.value("model_type", nlohmann::json());
  const auto* facts = type.is_string() ? find_facts(type.get_ref<const std::string&>()) : nullptr;
  SelectOptions rename;
  rename.rename.emplace_back("^lm_head\\.weight$", facts == nullptr ? FamilyFacts().embedding : facts->embedding);
  return select(std::move(source), rename);
}

/// True when the class that config.json names is the language model of its family, whose tensors are known here.
bool is_language_model(const nlohmann::json& config, const ModelConfig& model) {
  const auto named = config.value("architectures", nlohmann::json());
  if (!named.is_array() || named.empty()) return true;
  return named.front() == "Gemma3ForConditionalGeneration" || named.front() == hf_config(model)["architectures"][0];
}

/// Compares the tensors that are written with the model of config.json. Says it where no model is known.
/// \param numbers  the tensors before --quantize
/// \throws FormatError as find_model_tensors(), unless the options left tensors out
void check_fits(const HfTargetOptions& hf, const Conversion& options, std::shared_ptr<const Source> numbers,
                const Logger& log) {
  const auto file = config_of(hf);
  if (!file) return;
  const std::filesystem::path& path = options.input;
  const auto& input = options.changes;
  std::optional<ModelConfig> model;
  QuantizeConfig quantize;
  std::string reason = "it is of another class than the family's language model";
  try {
    model = model_config_from_json(file->json, file->name);
    if (!is_language_model(file->json, *model)) model.reset();
    if (!input.quantize.enabled()) quantize = stored_quantization(file->json, file->name).value_or(quantize);
  } catch (const Error& error) {
    model.reset();
    reason = error.what();
  }
  if (!model) return log.info("the tensors were not compared with the model of config.json: " + reason);
  try {
    find_model_tensors(*as_stored_for(std::move(numbers), file->json, path), path, *model, quantize);
  } catch (const FormatError& error) {
    const bool is_chosen = input.select.has_patterns() || input.map == NameMap::none;
    if (!is_chosen) throw;
    log.warning(fmt::format("{}: by the choice of tensors and names the output is not the model of its config.json: "
                            "transformers fills up with random numbers, and fsdp-eval refuses it",
                            error.what()),
                Remedy::chosen_tensors);
  }
}

}  // namespace

void add_tokenizer(HfTargetOptions& hf, const std::optional<ModelConfig>& model, const Source& original,
                   const Source& source, const Conversion& options, const Logger& log) {
  OwnTokenizer own{options.tokenizer, ""};
  if (own.name.empty()) {
    const auto& adapter = options.changes.merge_adapter;
    own = tokenizer_of(options.input, run_data_of(original), adapter);
    if (!options.config_from.empty() && has_tokenizer(options.config_from))
      return warn_of_other_tokenizer(options, own, options.config_from, log);
    const bool is_of_adapter = !adapter.empty() && own.name == tokenizer_of(adapter, nullptr).name;
    if (!is_of_adapter) warn_of_lost_tokens(options, original, source, own, log);
    const bool is_beside = std::ranges::any_of(hf.carry_from, has_tokenizer);
    if (is_beside && !is_of_adapter) return;
  }
  if (own.name.empty()) own.name = own.gone;
  auto tokenizer = find_export_tokenizer(own.name, model ? model->vocab_size : 0);
  if (!tokenizer.missing.empty()) {
    log.warning("no tokenizer goes along: " + tokenizer.missing, Remedy::config_from_tokenizer);
    return;
  }
  for (auto& [file, bytes] : tokenizer.files) hf.files[file] = std::move(bytes);
  hf.tokenizer_from = tokenizer.directory.value_or("");
}

std::string trained_template(const Conversion& options, const Source& original, const Logger& log) {
  auto text = options.chat_template;
  if (text.empty() && !options.changes.merge_adapter.empty())
    text = chat_template_of_adapter(options.changes.merge_adapter);
  if (text.empty()) text = text_of_run(run_data_of(original), "chat_template");
  if (!text.empty()) log.info("the chat template is the one that the model was trained with");
  return text;
}

void adapt_to_hf(const Source& original, const Conversion& /*options*/, SourceChanges& changes, const Logger& log) {
  keep_model_alone(original, log, changes, "hf holds a model only");
  if (changes.map || !changes.select.rename.empty()) return;
  const auto model = known_model(original, changes);
  if (model && !facts_of(*model).conv1d_type.empty() && !conv1d_layout(original).value_or(false)) {
    log.info("a minGPT: its names and matrices become GPT-2's", Remedy::map_none_keeps);
    changes.map = NameMap::mingpt_to_gpt2;
  }
}

std::unique_ptr<Target> make_hf_target(WriteRequest& request) {
  const auto& options = request.options;
  const auto& changes = request.changes;
  const auto& original = request.original;
  const auto& log = request.log;
  request.source = view_complex_as_real(std::move(request.source));
  if (!changes.quantize.enabled()) request.numbers = request.source;
  auto hf = carried_beside(options, original);
  if (options.max_shard_bytes) hf.max_shard_bytes = *options.max_shard_bytes;
  const auto model = known_model(original, options.changes);
  add_config(hf, model, changes, *request.source, log);
  adapt_config(hf, model, options, changes, *request.source);
  request.source = under_embedding_name(request.source, hf);
  check_fits(hf, options, request.numbers, log);
  add_tokenizer(hf, model, original, *request.source, options, log);
  add_tokenizer_json(hf, log);
  add_end_mark(hf, options, log);
  if (auto text = trained_template(options, original, log); !text.empty())
    hf.files["chat_template.jinja"] = std::move(text);
  return std::make_unique<HfTarget>(std::move(hf));
}

}  // namespace fsdp
