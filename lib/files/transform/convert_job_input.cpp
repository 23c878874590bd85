#include "lib/files/transform/convert_job_input.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/text_format.hpp"
#include "lib/files/read/deepspeed_folder.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/read/stored_quantization.hpp"
#include "lib/files/transform/local_state.hpp"
#include "lib/files/transform/megatron_source.hpp"
#include "lib/files/transform/merge_adapter.hpp"
#include "lib/files/transform/model_source.hpp"
#include "lib/files/transform/quantize.hpp"
#include "lib/files/transform/run_values.hpp"
#include "lib/files/write/safetensors_target.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {
namespace {

constexpr std::array<std::pair<const char*, NameMap>, 6> kMaps{{{"none", NameMap::none},
                                                                {"mingpt-to-gpt2", NameMap::mingpt_to_gpt2},
                                                                {"gpt2-to-mingpt", NameMap::gpt2_to_mingpt},
                                                                {"llama-to-hf", NameMap::llama_to_hf},
                                                                {"hf-to-llama", NameMap::hf_to_llama},
                                                                {"hf-to-meta", NameMap::hf_to_meta}}};

/// Parses a model configuration with our fields or with those of Hugging Face's config.json.
ModelConfig parse_model_config(const nlohmann::json& json, const std::string& origin) {
  return json.contains("model_type") ? model_config_from_hf(json, origin) : model_config_from_json(json, origin);
}

/// The parameter shapes from the options or from the checkpoint; nothing when neither has them.
std::optional<ParameterShapes> find_shapes(const Source& source, const InputOptions& options) {
  const int given = !options.param_shapes.empty() + !options.model_config.empty() + !options.reference.empty();
  if (given > 1) {
    throw UsageError("--param-shapes, --model-config and --reference all say what shapes parameters have: give one");
  }
  if (!options.param_shapes.empty()) return read_parameter_shapes(options.param_shapes);
  if (!options.model_config.empty()) return parameter_shapes_of_config(options.model_config);
  if (!options.reference.empty()) return parameter_shapes_of_reference(options.reference);
  const auto& directory = source.info().directory;
  if (const auto config = source.model_config(); !config.is_null()) {
    return parameter_shapes_of_json(config, (directory / "run.json").string());
  }
  if (!directory.empty() && std::filesystem::exists(directory / "config.json")) {
    return parameter_shapes_of_config(directory);
  }
  return std::nullopt;
}

[[noreturn]] void refuse_without_shapes(const std::filesystem::path& path) {
  throw UsageError(fmt::format(
      "{}: an FSDP1 local state holds flat parameters without names and shapes, which must come from elsewhere: give "
      "--model-config DIR (or its config.json) of the model, --reference FULL.pt (or a safetensors file) of the same "
      "model, or --param-shapes FILE.json",
      path.string()));
}

/// A sort key for a name: runs of digits as numbers, the rest as text.
std::vector<std::pair<std::string, unsigned long long>> natural_key(const std::string& name) {
  std::vector<std::pair<std::string, unsigned long long>> key;
  for (std::size_t i = 0; i < name.size();) {
    auto& [text, number] = key.emplace_back();
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) == 0) text += name[i++];
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0) {
      number = number * 10 + static_cast<unsigned>(name[i++] - '0');
    }
  }
  return key;
}

/// Refuses a GPT-2 with some matrices in 4 bits: these are [out, in], the others [in, out]. \throws FormatError
void refuse_part_in_4_bits(const Source& source) {
  if (find_stored_nf4(source).empty()) return;
  for (const auto& tensor : source.tensors()) {
    const std::string_view name = tensor.name;
    const bool is_matrix =
        name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") || name.ends_with(".c_fc.weight");
    if (is_matrix && is_float(tensor.dtype))
      throw FormatError(fmt::format("{}: '{}' is in numbers and others are in 4 bits; all or none can be converted",
                                    source.info().directory.string(), name));
  }
}

/// Dequantizes 4-bit matrices and merges the adapter. A merge needs matrices of [out, in]: those of a GPT-2 in floating
/// point are [in, out] (Conv1D) and are transposed before and after it; those from 4 bits are [out, in] and are
/// transposed after it.
std::shared_ptr<const Source> as_numbers(std::shared_ptr<const Source> source, const InputOptions& options) {
  const auto directory = source->info().directory;
  const bool is_gpt2 = is_gpt2_directory(directory);
  if (is_gpt2) refuse_part_in_4_bits(*source);
  source = dequantize(std::move(source));
  const bool turned = conv1d_layout(*source).value_or(false);
  if (options.merge_adapter.empty() && (turned || !is_gpt2)) return source;
  if (turned) source = gpt2_as_mingpt(std::move(source), directory);
  if (!options.merge_adapter.empty()) {
    source = language_model(std::move(source));
    // The merge writes --dtype itself, so that values are rounded once.
    const auto result = options.dtype.empty() ? std::nullopt : std::optional(parse_dtype(options.dtype));
    source = merge_adapter(std::move(source), options.merge_adapter, result);
  }
  return turned || is_gpt2 ? map_names(std::move(source), NameMap::mingpt_to_gpt2, nullptr) : std::move(source);
}

/// Quantizes to 4 bits. Codes are always of [out, in], so matrices of [in, out] (Conv1D) are transposed first.
std::shared_ptr<const Source> in_4_bits(std::shared_ptr<const Source> source, const InputOptions& options) {
  const auto directory = source->info().directory;
  if (conv1d_layout(*source).value_or(has_conv1d_matrices(directory)))
    source = gpt2_as_mingpt(std::move(source), directory);
  return quantize_nf4(std::move(source), options.quantize);
}

}  // namespace

NameMap parse_name_map(const std::string& text) {
  if (text.empty()) return NameMap::none;
  std::string names;
  for (const auto& [name, map] : kMaps) {
    if (text == name) return map;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError("--map " + text + ": must be one of " + names);
}

DType parse_dtype(const std::string& text) {
  constexpr std::array<std::pair<const char*, DType>, 8> shorter{{{"f64", DType::f64},
                                                                  {"fp64", DType::f64},
                                                                  {"f32", DType::f32},
                                                                  {"fp32", DType::f32},
                                                                  {"f16", DType::f16},
                                                                  {"fp16", DType::f16},
                                                                  {"half", DType::f16},
                                                                  {"bf16", DType::bf16}}};
  for (const auto& [name, dtype] : shorter) {
    if (text == name) return dtype;
  }
  try {
    return dtype_from_torch(text);
  } catch (const FormatError&) {
    throw UsageError("--dtype " + text + ": must be float32, bfloat16, float16 or float64 (or fp32, bf16, fp16, fp64)");
  }
}

std::pair<std::string, std::string> parse_pair(const std::string& text, const std::string& option) {
  const auto at = text.rfind('=');
  if (at == std::string::npos || at == 0) throw UsageError(fmt::format("{} {}: must be A=B", option, text));
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<std::filesystem::path> expand_glob(const std::string& pattern, const std::string& option) {
  ::glob_t found{};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; code == 0 && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (files.empty()) throw MissingInput(fmt::format("{} {}: no such file", option, pattern));
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return natural_key(a.string()) < natural_key(b.string()); });
  return files;
}

ModelConfig config_after_merge(ModelConfig config, const Source& source, const InputOptions& options) {
  if (options.merge_adapter.empty()) return config;
  if (source.info().unties_head) config.tie_word_embeddings = false;
  for (const auto& tensor : source.tensors()) {
    const bool is_embedding = tensor.name == "embedding.word_embeddings.weight" ||  // Megatron-core's
                              std::ranges::find(token_embeddings(), tensor.name) != token_embeddings().end();
    if (is_embedding && tensor.shape.size() == 2) config.vocab_size = tensor.shape[0];
  }
  return config;
}

std::optional<ModelConfig> known_model(const Source& source, const InputOptions& options) {
  const bool is_read = source.info().format == kMegatronFormat;  // model_config() has it
  if (!options.model_config.empty() && !is_read) {
    std::filesystem::path file = options.model_config;
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

void refuse_nothing(const Source& source, const Source& original, const std::filesystem::path& path) {
  const auto& tensors = source.tensors();
  if (std::ranges::any_of(tensors, [](const auto& tensor) { return num_elements(tensor.shape) > 0; })) return;
  const auto what = tensors.empty()
                        ? std::string("no tensor")
                        : format_count_of(static_cast<std::int64_t>(tensors.size()), "tensor") + " without an element";
  throw FormatError(fmt::format("{}: holds {}, so there is nothing to convert or check{}", path.string(), what,
                                is_deepspeed_file(original) ? ". " + deepspeed_advice() : ""));
}

std::shared_ptr<const Source> open_input(const std::filesystem::path& path, const InputOptions& options,
                                         bool must_unflatten) {
  std::shared_ptr<const Source> source = open_source(path);
  if (!is_local_state(*source)) {
    if (!options.optim_files.empty()) {
      throw UsageError(path.string() + ": is no FSDP1 local state; --optim-files goes with one only");
    }
    if (!is_megatron(*source) || options.map == "none") return source;
    try {
      return megatron_as_hf(source, options.model_config.empty() ? options.config_from : options.model_config);
    } catch (const Error&) {
      if (must_unflatten) throw;
      return source;
    }
  }
  auto shapes = find_shapes(*source, options);
  if (!shapes && must_unflatten) refuse_without_shapes(path);
  if (!shapes) return source;
  UnFlattenOptions un_flattening;
  un_flattening.shapes = std::move(*shapes);
  for (const auto& tie : options.ties) un_flattening.ties.push_back(parse_pair(tie, "--tie"));
  if (!options.optim_files.empty()) un_flattening.optim_files = expand_glob(options.optim_files, "--optim-files");
  return un_flatten(std::move(source), un_flattening);
}

std::shared_ptr<const Source> transformed(std::shared_ptr<const Source> source, const InputOptions& options) {
  const auto map = parse_name_map(options.map);
  const bool makes_numbers = options.dequantize || !options.merge_adapter.empty() || !options.dtype.empty() ||
                             options.quantize.enabled() || map != NameMap::none;
  const bool has_fp8 = options.dequantize && !find_stored_fp8(*source).empty();
  if (has_fp8) source = dequantize_fp8(std::move(source));
  if (makes_numbers && !has_fp8) refuse_other_quantization(*source);
  if (options.dequantize && !has_fp8 && find_stored_nf4(*source).empty())
    throw FormatError(source->info().directory.string() +
                      ": --dequantize found no matrix in 4 bits, and none in float8 with scales of blocks, so there is "
                      "nothing to make numbers of: leave it out");
  // Must come before names change, since adapters have the names of the base.
  if (options.dequantize || !options.merge_adapter.empty()) source = as_numbers(std::move(source), options);
  SelectOptions selection;
  selection.include = options.include;
  selection.exclude = options.exclude;
  selection.must_match = !options.patterns_may_miss;
  for (const auto& text : options.rename) selection.rename.push_back(parse_pair(text, "--rename"));
  selection.model_only = options.model_only;
  if (!selection.include.empty() || !selection.exclude.empty() || !selection.rename.empty() || selection.model_only) {
    source = select(std::move(source), selection);
  }
  if (map != NameMap::none) {
    auto model = known_model(*source, options);
    const auto beside = source->info().directory / "config.json";
    std::error_code error;
    // Heads lie in another order in Meta's files, so their number is needed.
    if (!model && (map == NameMap::hf_to_meta || map == NameMap::llama_to_hf) &&
        std::filesystem::is_regular_file(beside, error))
      model = read_model_config(beside);
    source = map_names(std::move(source), map, model ? &*model : nullptr);
  }
  if (options.as_megatron) {
    const bool is_short = !options.dtype.empty() && dtype_size_bytes(parse_dtype(options.dtype)) == 2;
    const auto model = config_after_merge(*options.as_megatron, *source, options);
    source = hf_as_megatron(std::move(source), model, /*masters=*/is_short);
  }
  if (!options.dtype.empty()) source = cast(std::move(source), parse_dtype(options.dtype));
  if (options.quantize.double_quant && !options.quantize.enabled())
    throw UsageError("--double-quant needs --quantize nf4");
  if (options.quantize.enabled()) source = in_4_bits(std::move(source), options);
  return source;
}

}  // namespace fsdp
