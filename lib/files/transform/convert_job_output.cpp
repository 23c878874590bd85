#include "lib/files/transform/convert_job_output.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/ignored.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/stop_signal.hpp"
#include "lib/base/text_format.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/read/stored_quantization.hpp"
#include "lib/files/transform/base_weights.hpp"
#include "lib/files/transform/convert_job.hpp"
#include "lib/files/transform/gguf_model.hpp"
#include "lib/files/transform/gguf_weights.hpp"
#include "lib/files/transform/megatron_source.hpp"
#include "lib/files/transform/model_source.hpp"
#include "lib/files/transform/model_tensors.hpp"
#include "lib/files/transform/quantize.hpp"
#include "lib/files/transform/run_values.hpp"
#include "lib/files/transform/select.hpp"
#include "lib/files/transform/tracked_source.hpp"
#include "lib/files/transform/transform.hpp"
#include "lib/files/write/copy.hpp"
#include "lib/files/write/dcp_target.hpp"
#include "lib/files/write/gguf_target.hpp"
#include "lib/files/write/megatron_target.hpp"
#include "lib/files/write/safetensors_target.hpp"
#include "lib/files/write/torch_target.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/text/tokenizer/gguf_vocabulary.hpp"
#include "lib/text/tokenizer/open_tokenizer.hpp"
#include "lib/text/tokenizer/sentencepiece_tokenizer.hpp"

namespace fsdp {
namespace {

constexpr std::array kKinds{OutputKind::torch, OutputKind::safetensors, OutputKind::hf,
                            OutputKind::dcp,   OutputKind::megatron,    OutputKind::gguf};

OutputKind kind_of_name(const std::string& name) {
  for (const auto kind : kKinds) {
    if (name == to_string(kind)) return kind;
  }
  throw UsageError("--to " + name + ": must be torch, safetensors, hf, dcp, megatron or gguf");
}

std::optional<OutputKind> kind_of_suffix(const std::filesystem::path& output) {
  const auto suffix = ascii_lower(output.extension().string());
  if (suffix == ".pt" || suffix == ".pth" || suffix == ".bin") return OutputKind::torch;
  if (suffix == ".safetensors") return OutputKind::safetensors;
  if (suffix == ".gguf") return OutputKind::gguf;
  return std::nullopt;
}

OutputKind kind_of_request(const OutputRequest& request) {
  if (!request.to.empty()) return kind_of_name(request.to);
  if (const auto kind = kind_of_suffix(request.output)) return *kind;
  if (request.shards_given && !request.max_shard_size_given) return OutputKind::dcp;
  if (request.max_shard_size_given && !request.shards_given) return OutputKind::hf;
  throw UsageError(
      fmt::format("{}: its name does not say which format to write: give --to torch, safetensors, hf, dcp, megatron or "
                  "gguf (or end "
                  "it in .pt, .pth, .bin, .safetensors or .gguf; --shards alone means dcp, --max-shard-size alone hf)",
                  request.output.string()));
}

/// The output of a conversion: where, in which format, and from which source.
struct Plan {
  std::filesystem::path output;
  OutputKind kind = OutputKind::torch;
  std::shared_ptr<const TrackedSource> input;
  std::shared_ptr<const Source> source;
  std::unique_ptr<Target> target;
};

OutputKind kind_of(const ConvertOptions& options) {
  OutputRequest request;
  request.output = options.paths[1];
  request.to = options.to;
  request.shards_given = options.shards != 0;
  request.max_shard_size_given = !options.max_shard_size.empty();
  const auto kind = choose_output_kind(request);
  if (!options.config_from.empty() && kind != OutputKind::hf && kind != OutputKind::gguf) {
    throw UsageError("--config-from goes with --to hf and gguf only: other formats have no place for these files");
  }
  if (!options.pre_tokenizer.empty() && kind != OutputKind::gguf)
    throw UsageError("--pre-tokenizer goes with --to gguf only: other formats take tokenizer.json as it is");
  if (options.input.quantize.enabled() && kind == OutputKind::gguf)
    throw UsageError("--quantize is for transformers: in a GGUF file give --dtype q8_0");
  return kind;
}

/// The output path without a slash at its end: "out/" and "out" are one directory. Refuses the slash for a file.
std::filesystem::path output_path(const ConvertOptions& options, OutputKind kind) {
  std::filesystem::path output = options.paths[1];
  const bool is_file = kind == OutputKind::torch || kind == OutputKind::safetensors || kind == OutputKind::gguf;
  if (output.has_filename()) return output;
  if (is_file) {
    throw UsageError(
        fmt::format("{}: --to {} writes a file, but this names a directory", output.string(), to_string(kind)));
  }
  return output.parent_path();
}

bool changes_tensors(const InputOptions& input) {
  return !input.include.empty() || !input.exclude.empty() || !input.rename.empty() || input.model_only ||
         !input.merge_adapter.empty() || input.dequantize || input.quantize.enabled() || !input.dtype.empty() ||
         parse_name_map(input.map) != NameMap::none;
}

/// \param why  for the log
void keep_model_alone(const Source& source, const Logger& log, InputOptions& input, const std::string& why) {
  if (!input.model_only && !source.values().empty())
    log.info(why + ": optimizer state, counters and other values are left out");
  input.model_only = true;
}

/// A second model, such as an average of the weights, is not what --model-only means by optimizer and counters.
void tell_other_models(const Source& source, const Logger& log) {
  for (const auto& [container, tensors] : containers_left_out(source))
    log.info(
        fmt::format("left out: {} of '{}', which is beside the model", format_count_of(tensors, "tensor"), container));
}

/// Drops what Hugging Face's format cannot hold, and maps a minGPT to the names of GPT-2 when the options do not set
/// names.
void adapt_to_hf(const Source& source, const Logger& log, InputOptions& input) {
  keep_model_alone(source, log, input, "hf holds a model only");
  if (!input.map.empty() || !input.rename.empty()) return;
  const auto model = known_model(source, input);
  if (model && !facts_of(*model).conv1d_type.empty() && !conv1d_layout(source).value_or(false)) {
    log.info("a minGPT: its names and matrices become GPT-2's (--map mingpt-to-gpt2; --map none keeps them)");
    input.map = "mingpt-to-gpt2";
  }
}

/// True for the tensors of scales of a 4-bit matrix.
bool is_scale(std::string_view name) {
  return name.ends_with(".absmax") || name.ends_with(".nested_absmax") || name.ends_with("quant_map");
}

/// The most common floating-point type, for config.json. The scales of 4-bit matrices do not count.
std::string main_dtype(const Source& source) {
  std::map<std::string_view, std::uint64_t> bytes;
  for (const auto& tensor : source.tensors()) {
    if (is_float(tensor.dtype) && !is_scale(tensor.name)) bytes[torch_name(tensor.dtype)] += tensor.size_bytes();
  }
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "float32" : std::string(most->first);
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
void add_config(HfTargetOptions& hf, const std::optional<ModelConfig>& model, const InputOptions& input,
                const Source& source, const Logger& log) {
  const auto conv1d_type = model ? facts_of(*model).conv1d_type : std::string_view();
  const bool keeps_names = input.map == "none" || (input.map.empty() && !input.rename.empty());
  for (const auto& directory : hf.carry_from) {
    const auto type = model_type_of(directory);
    if (!type) continue;
    if (conv1d_type.empty() || (*type == conv1d_type) != keeps_names) return;
    break;
  }
  if (model) {
    auto config = !conv1d_type.empty() && keeps_names ? model_config_to_json(*model) : hf_config(*model);
    config["torch_dtype"] = main_dtype(source);
    hf.files["config.json"] = json_text(config, 2) + "\n";
    return;
  }
  log.warning(
      "no config.json is known, without which transformers does not open the output: give --config-from DIR or "
      "--model-config FILE");
}

struct ConfigFile {
  std::string name;  ///< for messages
  nlohmann::json json;
};

/// config.json, or another file of this kind, as it will be written; nothing when there is none. \throws FormatError
/// when it is no JSON object
std::optional<ConfigFile> config_of(const HfTargetOptions& hf, const std::string& name = "config.json") {
  const auto parsed = [](const std::string& text, const std::string& file) {
    try {
      auto config = parse_json(text, file);
      if (config.is_object()) return ConfigFile{file, std::move(config)};
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

/// Updates config.json for the written tensors: their type, whether matrices are in 4 bits, and whether an adapter has
/// parted head and embedding. Spells the rope
/// parameters of transformers 5 so that transformers 4 reads them, too.
void adapt_config(HfTargetOptions& hf, const InputOptions& input, const Source& source) {
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
    throw UsageError(
        "config.json says gpt2, whose matrices are [in, out], and these are [out, in]: give "
        "--map mingpt-to-gpt2");
  const bool changed = spell_rope_for_all(config, file->name) || is_text;
  const auto before = config;
  if (input.dequantize || !input.merge_adapter.empty()) config.erase("quantization_config");
  if (source.info().unties_head) config["tie_word_embeddings"] = false;
  for (const auto& tensor : source.tensors()) {
    const bool is_embedding = std::ranges::find(token_embeddings(), tensor.name) != token_embeddings().end();
    if (is_embedding && tensor.shape.size() == 2 && config.contains("vocab_size") &&
        config["vocab_size"] != tensor.shape[0])
      config["vocab_size"] = tensor.shape[0];
  }
  const auto dtype = main_dtype(source);
  const auto compute = nlohmann::json::json_pointer("/quantization_config/bnb_4bit_compute_dtype");
  if (!input.dtype.empty() && config.contains(compute)) config[compute] = dtype;
  if (input.quantize.enabled())
    config["quantization_config"] = hf_quantization_config(input.quantize, dtype_from_torch(dtype));
  if (!input.dtype.empty() || config != before)
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;  // newer and older name in transformers
  if (changed || config != before) hf.files["config.json"] = json_text(config, 2) + "\n";
}

/// Warns where the tokenizer that goes along, that of `directory`, is another one than the model was trained with.
void warn_of_other_tokenizer(const ConvertOptions& options, const OwnTokenizer& own,
                             const std::filesystem::path& directory, const Logger& log) {
  const auto& trained = options.input.merge_adapter.empty() ? options.paths[0] : options.input.merge_adapter;
  const bool is_folder = !own.name.empty() && own.name != kBuiltInTokenizer;
  if (is_folder && !same_tokenizer_files(own.name, directory))
    log.warning(fmt::format("{}: its tokenizer is that of {}, and the one of --config-from {} goes along", trained,
                            own.name, directory.string()));
}

/// Warns of a merge that brings rows for new tokens where the tokenizer that has them is not known.
void warn_of_lost_tokens(const ConvertOptions& options, const Source& original, const Source& source,
                         const OwnTokenizer& own, const Logger& log) {
  const auto rows = [](const Source& of) -> std::int64_t {
    for (const auto& tensor : of.tensors())
      if (std::ranges::find(token_embeddings(), tensor.name) != token_embeddings().end() && tensor.shape.size() == 2)
        return tensor.shape[0];
    return 0;
  };
  if (options.input.merge_adapter.empty() || rows(source) <= rows(original)) return;
  log.warning(fmt::format(
      "{}: has rows for {} tokens, {} for {}, and {}: the tokenizer that goes along does not know the new tokens; give "
      "--config-from DIR with the one that does",
      options.input.merge_adapter, rows(source), options.paths[0], rows(original),
      own.gone.empty() ? "has no tokenizer" : "its run's tokenizer is no longer in " + own.gone));
}

/// The tokenizer goes along that the options name, else the one that belongs to the adapter or the input.
void add_tokenizer(HfTargetOptions& hf, const std::optional<ModelConfig>& model, const Source& original,
                   const Source& source, const ConvertOptions& options, const Logger& log) {
  OwnTokenizer own{options.tokenizer, ""};
  if (own.name.empty()) {
    const auto& adapter = options.input.merge_adapter;
    own = tokenizer_of(options.paths[0], run_data_of(original), adapter);
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
    log.warning("no tokenizer goes along: " + tokenizer.missing + " (--config-from DIR names a directory with one)");
    return;
  }
  for (auto& [file, bytes] : tokenizer.files) hf.files[file] = std::move(bytes);
  hf.tokenizer_from = tokenizer.directory.value_or("");
}

/// The directory of the tokenizer, empty for GPT-2's own; nothing when there is no tokenizer.
std::optional<std::filesystem::path> tokenizer_directory(const HfTargetOptions& hf) {
  if (hf.tokenizer_from) return *hf.tokenizer_from;
  const auto found = std::ranges::find_if(hf.carry_from, has_tokenizer);
  return found == hf.carry_from.end() ? std::nullopt : std::optional(*found);
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
void add_end_mark(HfTargetOptions& hf, const ConvertOptions& options, const Logger& log) {
  std::error_code error;
  const bool is_of_adapter = !options.input.merge_adapter.empty() && hf.tokenizer_from && !hf.tokenizer_from->empty() &&
                             !std::filesystem::equivalent(*hf.tokenizer_from, options.paths[0], error);
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

/// The template that an adapter or a run was trained with, which the tokenizer need not have; "" when none is known.
std::string trained_template(const ConvertOptions& options, const Source& original, const Logger& log) {
  auto text = options.chat_template;
  if (text.empty() && !options.input.merge_adapter.empty())
    text = chat_template_of_adapter(options.input.merge_adapter);
  if (text.empty()) text = text_of_run(run_data_of(original), "chat_template");
  if (!text.empty()) log.info("the chat template is the one that the model was trained with");
  return text;
}

/// Renames the head of a tied model without an embedding to the embedding, which is the name that transformers writes.
std::shared_ptr<const Source> under_embedding_name(std::shared_ptr<const Source> source, const HfTargetOptions& hf) {
  const auto file = config_of(hf);
  if (!file || !says_tied(file->json)) return source;
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

/// The directories whose small files belong to the model.
HfTargetOptions carried_beside(const ConvertOptions& options, const Source& original) {
  HfTargetOptions hf;
  if (!options.config_from.empty()) {
    if (!std::filesystem::is_directory(options.config_from)) {
      throw MissingInput("--config-from " + options.config_from + ": is no directory");
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

/// True when the class that config.json names is the language model of its family, whose tensors are known here.
bool is_language_model(const nlohmann::json& config, const ModelConfig& model) {
  const auto named = config.value("architectures", nlohmann::json());
  if (!named.is_array() || named.empty()) return true;
  return named.front() == "Gemma3ForConditionalGeneration" || named.front() == hf_config(model)["architectures"][0];
}

/// Compares the tensors that are written with the model of config.json. Says it where no model is known.
/// \param numbers  the tensors before --quantize
/// \throws FormatError as find_model_tensors(), unless the options left tensors out
void check_fits(const HfTargetOptions& hf, const ConvertOptions& options, std::shared_ptr<const Source> numbers,
                const Logger& log) {
  const auto file = config_of(hf);
  if (!file) return;
  const std::filesystem::path& path = options.paths[0];
  const auto& input = options.input;
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
    const bool is_chosen =
        !input.include.empty() || !input.exclude.empty() || !input.rename.empty() || input.map == "none";
    if (!is_chosen) throw;
    log.warning(fmt::format(
        "{}: --include, --exclude, --rename or --map chose so, and the output is not the model of its config.json: "
        "transformers fills up with random numbers, and fsdp-eval refuses it",
        error.what()));
  }
}

/// \param source  replaced by a source in which a tied head has the name of the missing embedding
/// \param numbers  the same before --quantize
std::unique_ptr<Target> make_hf_target(const ConvertOptions& options, const Source& original,
                                       std::shared_ptr<const Source>& source, std::shared_ptr<const Source> numbers,
                                       const Logger& log) {
  auto hf = carried_beside(options, original);
  if (!options.max_shard_size.empty()) hf.max_shard_bytes = parse_size(options.max_shard_size, "--max-shard-size");
  const auto model = known_model(original, options.input);
  add_config(hf, model, options.input, *source, log);
  adapt_config(hf, options.input, *source);
  source = under_embedding_name(std::move(source), hf);
  check_fits(hf, options, std::move(numbers), log);
  add_tokenizer(hf, model, original, *source, options, log);
  add_tokenizer_json(hf, log);
  add_end_mark(hf, options, log);
  if (auto text = trained_template(options, original, log); !text.empty())
    hf.files["chat_template.jinja"] = std::move(text);
  return std::make_unique<HfTarget>(std::move(hf));
}

/// \param source  replaced by the model under llama.cpp's names
std::unique_ptr<Target> make_gguf_target(const ConvertOptions& options, const Source& original,
                                         std::shared_ptr<const Source>& source, const Logger& log) {
  auto hf = carried_beside(options, original);
  const auto known = known_model(original, options.input);
  auto file = config_of(hf);
  if (!known && !file)
    throw UsageError(options.paths[0] +
                     ": no config.json is known, which has the model's sizes: give --config-from DIR or --model-config "
                     "FILE");
  const auto config =
      config_after_merge(known ? *known : model_config_from_json(file->json, file->name), *source, options.input);
  add_tokenizer(hf, config, original, *source, options, log);
  const auto directory = tokenizer_directory(hf);
  if (!file && directory && !directory->empty()) {
    hf.carry_from.push_back(*directory);
    file = config_of(hf);
  }
  const auto type = options.input.dtype.empty() ? gguf_type_of(*source) : parse_gguf_type(options.input.dtype);
  source = gguf_model(std::move(source), config, type);
  std::optional<GgufVocabulary> vocabulary;
  if (directory) {
    vocabulary = read_gguf_vocabulary(*directory, file ? file->json : hf_config(config),
                                      {.num_rows = config.vocab_size,
                                       .takes_sentencepiece = facts_of(config).takes_sentencepiece,
                                       .pre = options.pre_tokenizer});
    if (auto text = trained_template(options, original, log); !text.empty())
      vocabulary->templates = {{"default", std::move(text)}};
    if (!vocabulary->remark.empty()) log.warning(vocabulary->remark);
  }
  const std::filesystem::path output = options.paths[1];
  return std::make_unique<GgufTarget>(output, gguf_entries(*source, config, type, output.stem().string(), vocabulary));
}

std::unique_ptr<Target> make_dcp_target(const ConvertOptions& options, const Source& original) {
  DcpTargetOptions dcp;
  dcp.num_shards = options.shards == 0 ? 1 : options.shards;
  // run.json describes the tensors of the run: it is carried along only with all of these, unchanged.
  if (!changes_tensors(options.input)) carry_run_json(dcp, original.info().directory);
  return std::make_unique<DcpTarget>(std::move(dcp));
}

/// Finds the model, whose tensors are written under Megatron-core's names.
void adapt_to_megatron(const Source& original, const Logger& log, InputOptions& input) {
  if (input.quantize.enabled())
    throw UsageError("--quantize does not go with --to megatron: Megatron-core has no matrices in 4 bits");
  const bool makes_numbers = input.dequantize || !input.merge_adapter.empty();
  if (!makes_numbers && (!find_stored_nf4(original).empty() || !find_stored_fp8(original).empty()))
    throw UsageError(
        original.info().directory.string() +
        ": has matrices in 4 bits, or in float8 with scales, which Megatron-core has not: give --dequantize");
  auto model = known_model(original, input);
  std::error_code error;
  const auto beside = original.info().directory / "config.json";
  if (!model && std::filesystem::is_regular_file(beside, error)) model = read_model_config(beside);
  if (!model) throw UsageError("--to megatron needs the model's sizes: give --model-config with its config.json");
  if (!original.values().empty() && !input.model_only)
    log.info("megatron holds a model and its optimizer: other values are left out");
  input.as_megatron = std::move(*model);
}

std::unique_ptr<Target> make_megatron_target(const ConvertOptions& options, const Source& original,
                                             const ModelConfig& model, const Source& source) {
  const auto& tensors = source.tensors();
  const bool has_optimizer =
      std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.name.starts_with("optimizer."); });
  auto beside = megatron_beside(original, model, tensors.front().dtype, has_optimizer);
  return std::make_unique<MegatronTarget>(std::move(beside.folder), std::move(beside.common),
                                          std::max(options.shards, 1));
}

/// Warns of remarks on what was opened, and of an adapter beside the weights that has no effect.
void warn_of_remarks(const ConvertOptions& options, const Source& original, const Source& source, const Logger& log) {
  log.warnings_of_all(source.info().remarks);
  const bool is_adapter = !original.info().adapter.empty() || !std::filesystem::is_directory(options.paths[0]);
  if (is_adapter || !options.input.merge_adapter.empty()) return;
  log.warnings_of_all(adapter_left_out(options.paths[0]));
}

/// \throws FormatError naming the first tensor of a type that the output cannot hold
void refuse_other_types(const Source& source) {
  for (const auto& tensor : source.tensors())
    if (tensor.other)
      throw FormatError(fmt::format("{}: tensor \"{}\" is of type {}, which {}leave it out with --exclude",
                                    source.info().directory.string(), tensor.name, tensor.other->name,
                                    source.info().format == kGgufMagic
                                        ? "only GGUF can hold: --to hf makes numbers of it, or "
                                        : "only safetensors can hold: convert to safetensors or hf, or "));
}

/// \throws UsageError for a checkpoint of a run with adapters, which has no weights: they need those of their base
void refuse_adapters_alone(const ConvertOptions& options, OutputKind kind) {
  const auto run = adapters_of_run(options.paths[0]);
  if (run.is_null() || !options.input.merge_adapter.empty()) return;
  const auto base = run.value("weights", nlohmann::json());
  throw UsageError(fmt::format(
      "{0}: its run trained adapters, so this checkpoint has no weights of a model: fsdp-ckpt-convert {1} {2} --to {3} "
      "--merge-adapter {0} writes the model with them ({1}: the weights that they were trained for)",
      options.paths[0], base.is_string() ? base.get<std::string>() : "BASE", options.paths[1], to_string(kind)));
}

/// The model whose names the output has; nothing where none is known here.
std::optional<ModelConfig> model_of_output(const ConvertOptions& options, const Source& original) {
  auto known = known_model(original, options.input);
  if (known) return known;
  const auto file = config_of(carried_beside(options, original));
  // A multimodal model has names of its own.
  if (!file || file->json.value("model_type", nlohmann::json()) == "gemma3") return std::nullopt;
  try {
    return model_config_from_json(file->json, file->name);
  } catch (const Error&) {  // of a model that is not known here
    return std::nullopt;
  }
}

/// A GGUF file keeps llama.cpp's names, except where the output is a model of others.
std::shared_ptr<const Source> model_of_gguf(std::shared_ptr<const Source> gguf, OutputKind kind,
                                            const ConvertOptions& options) {
  if (kind == OutputKind::gguf)
    throw UsageError(fmt::format(
        "{0}: is a GGUF file already: for another type make a model of it first (fsdp-ckpt-convert {0} DIR --to hf)",
        options.paths[0]));
  const bool is_model = kind == OutputKind::hf || kind == OutputKind::megatron;
  return is_model && options.input.map != "none" ? gguf_as_model(std::move(gguf)) : std::move(gguf);
}

Plan make_plan(const ConvertOptions& options, const Logger& log) {
  Plan plan;
  plan.kind = kind_of(options);
  plan.output = output_path(options, plan.kind);
  const bool is_gguf = plan.kind == OutputKind::gguf;
  if (plan.kind == OutputKind::hf || is_gguf) refuse_adapters_alone(options, plan.kind);
  auto input = options.input;
  const std::filesystem::path named = options.config_from;
  if (!named.empty() && std::filesystem::is_regular_file(named / "config.json"))
    input.config_from = options.config_from;
  plan.input = std::make_shared<TrackedSource>(open_input(options.paths[0], input, true));
  std::shared_ptr<const Source> original = plan.input;
  refuse_nothing(*original, *original, options.paths[0]);
  if (is_gguf_source(*original)) original = model_of_gguf(std::move(original), plan.kind, options);
  const bool is_model = plan.kind == OutputKind::hf || plan.kind == OutputKind::megatron || is_gguf;
  const auto names = is_model && input.map != "none" ? model_of_output(options, *original) : std::nullopt;
  if (names) refuse_adapters_inside(*original);
  // Patterns of the options are for the names that are stored.
  const bool has_patterns = !input.include.empty() || !input.exclude.empty() || !input.rename.empty();
  if (names && !has_patterns) original = with_model_names(std::move(original), *names);
  if (plan.kind == OutputKind::hf) adapt_to_hf(*original, log, input);
  if (plan.kind == OutputKind::megatron) adapt_to_megatron(*original, log, input);
  if (is_gguf) {
    keep_model_alone(*original, log, input, "gguf holds a model only");
    // Vectors stay float32, and merged matrices are rounded once.
    input.dtype = input.merge_adapter.empty() || input.dtype.empty() ? "" : "float32";
  }
  // Optimizer state belongs to the weights before the merge.
  if (!input.merge_adapter.empty()) keep_model_alone(*original, log, input, "--merge-adapter changes the weights");
  if (input.model_only) tell_other_models(*original, log);
  const auto made = [&](const InputOptions& how) {
    auto source = transformed(original, how);
    const bool is_named = !has_patterns || plan.kind == OutputKind::megatron;
    return names && !is_named ? with_model_names(std::move(source), *names) : source;
  };
  plan.source = made(input);
  refuse_nothing(*plan.source, *original, options.paths[0]);
  // Scales of matrices in 4 bits would have to be computed to compare them.
  const auto numbers = [&] {
    if (!input.quantize.enabled()) return plan.source;
    auto how = input;
    how.quantize = {};
    return made(how);
  };
  if (plan.kind != OutputKind::safetensors && plan.kind != OutputKind::hf) refuse_other_types(*plan.source);
  switch (plan.kind) {
    case OutputKind::torch:
      plan.target = std::make_unique<TorchTarget>(plan.output);
      break;
    case OutputKind::safetensors:
      plan.source = view_complex_as_real(std::move(plan.source));
      plan.target = std::make_unique<SafetensorsTarget>(plan.output);
      break;
    case OutputKind::hf:
      plan.source = view_complex_as_real(std::move(plan.source));
      plan.target = make_hf_target(options, *original, plan.source, numbers(), log);
      break;
    case OutputKind::dcp:
      plan.target = make_dcp_target(options, *original);
      break;
    case OutputKind::megatron:
      plan.target = make_megatron_target(options, *original,
                                         config_after_merge(*input.as_megatron, *plan.source, input), *plan.source);
      break;
    case OutputKind::gguf:
      plan.target = make_gguf_target(options, *original, plan.source, log);
      break;
  }
  log.info(fmt::format("{}: {}, {}, {} -> {} ({})", options.paths[0], original->info().format,
                       format_count_of(static_cast<std::int64_t>(original->tensors().size()), "tensor"),
                       format_count_of(static_cast<std::int64_t>(original->values().size()), "value"),
                       plan.output.string(), to_string(plan.kind)));
  warn_of_remarks(options, *original, *plan.source, log);
  return plan;
}

nlohmann::json describe(const ConvertOptions& options, const Plan& plan) {
  nlohmann::json report{{"input", options.paths[0]},
                        {"input_format", plan.source->info().format},
                        {"output", plan.output.string()},
                        {"output_format", to_string(plan.kind)},
                        {"tensors", plan.source->tensors().size()},
                        {"values", plan.source->values().size()}};
  if (!options.input.merge_adapter.empty()) report["merged_adapter"] = options.input.merge_adapter;
  return report;
}

/// Lists the parts of the input that have not come into the output. Collective, after the copy.
Ignored what_was_ignored(ProcessGroup& world, const ConvertOptions& options, const Plan& plan) {
  Ignored ignored;
  ignored.add(options.paths[0], plan.input->unread(world));
  // Folders of trainers and of ranks have files of which their readers tell.
  const auto& info = plan.input->info();
  if (info.format != "safetensors" || !info.trainer.empty()) return ignored;
  auto used = files_read(info);
  if (!info.adapter.empty()) used.insert(kAdapterConfig);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(plan.output, error))
    used.insert(entry.path().filename().string());  // a file of the same name was carried along, or made
  ignored.add_files(options.paths[0], used);
  return ignored;
}

void dry_run(const ConvertOptions& options, Plan& plan, const Logger& log, nlohmann::json& report) {
  const auto layout = plan.target->plan(*plan.source);
  auto files = nlohmann::json::array();
  std::uint64_t bytes = 0;
  for (const auto& file : layout.files) {
    const auto name = plan.target->is_directory() ? plan.output / file.name : plan.output.parent_path() / file.name;
    log.info(fmt::format("would write {} to {}", format_count_of(static_cast<std::int64_t>(file.size_bytes), "byte"),
                         name.string()));
    files.push_back({{"name", name.string()}, {"bytes", file.size_bytes}});
    bytes += file.size_bytes;
  }
  report = describe(options, plan);
  report["dry_run"] = true;
  report["files"] = std::move(files);
  report["bytes"] = bytes;
}

}  // namespace

std::string_view to_string(OutputKind kind) {
  switch (kind) {
    case OutputKind::torch:
      return "torch";
    case OutputKind::safetensors:
      return "safetensors";
    case OutputKind::hf:
      return "hf";
    case OutputKind::dcp:
      return "dcp";
    case OutputKind::megatron:
      return "megatron";
    case OutputKind::gguf:
      return "gguf";
  }
  return "?";
}

OutputKind choose_output_kind(const OutputRequest& request) {
  const auto kind = kind_of_request(request);
  if (request.shards_given && kind != OutputKind::dcp && kind != OutputKind::megatron) {
    throw UsageError(fmt::format("--shards goes with --to dcp and --to megatron only; {} is written as {}",
                                 request.output.string(), to_string(kind)));
  }
  if (request.max_shard_size_given && kind != OutputKind::hf) {
    throw UsageError(fmt::format("--max-shard-size goes with --to hf only; {} is written as {}",
                                 request.output.string(), to_string(kind)));
  }
  return kind;
}

std::uint64_t parse_size(std::string_view text, std::string_view option) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = ascii_lower({end, text.data() + text.size()});
  constexpr std::array<std::pair<std::string_view, double>, 12> units{{{"", 1},
                                                                       {"b", 1},
                                                                       {"kb", 1e3},
                                                                       {"mb", 1e6},
                                                                       {"gb", 1e9},
                                                                       {"tb", 1e12},
                                                                       {"kib", 0x1p10},
                                                                       {"mib", 0x1p20},
                                                                       {"gib", 0x1p30},
                                                                       {"tib", 0x1p40},
                                                                       {"m", 1e6},
                                                                       {"g", 1e9}}};
  const auto* found = std::find_if(units.begin(), units.end(), [&](const auto& known) { return known.first == unit; });
  const double bytes = found == units.end() ? 0 : std::floor(number * found->second);
  if (error != std::errc() || found == units.end() || !(bytes >= 1 && bytes < 0x1p62)) {
    throw UsageError(fmt::format("{} {}: must be a size such as 5GB, 500MB or 2GiB", option, text));
  }
  return static_cast<std::uint64_t>(bytes);
}

ExitCode run_conversion(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report) {
  const StopSignal stop;
  auto plan = make_plan(options, log);
  if (options.dry_run) {
    dry_run(options, plan, log, report);
    return ExitCode::ok;
  }
  if (!options.input.merge_adapter.empty()) require_base_weights(world, options.input.merge_adapter, options.paths[0]);
  Progress progress(log, true, options.progress_seconds);
  CopyOptions how;
  how.jobs = options.jobs;
  how.sync = options.sync;
  how.overwrite = options.overwrite;
  how.made_by = options.made_by;
  how.progress = [&](const CopyProgress& done) { show_bytes(progress, "written", done.bytes_done, done.bytes_total); };
  how.stop = [&] { return stop.received() != 0; };
  const auto copied = copy(*plan.source, *plan.target, plan.output, how, world);
  progress.finish();
  const auto bytes = static_cast<double>(copied.bytes_written);
  log.info(fmt::format("wrote {}: {} in {} {}, {:.2f} s ({}/s)", plan.output.string(), format_bytes(bytes),
                       copied.num_files, copied.num_files == 1 ? "file" : "files", copied.seconds,
                       format_bytes(copied.seconds > 0 ? bytes / copied.seconds : 0)));
  report = describe(options, plan);
  report["bytes"] = copied.bytes_written;
  report["num_files"] = copied.num_files;
  report["seconds"] = copied.seconds;
  const auto ignored = what_was_ignored(world, options, plan);
  report["ignored"] = ignored.to_json();
  tell_of_ignored(ignored, log);
  return ExitCode::ok;
}

}  // namespace fsdp
