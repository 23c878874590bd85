#include "lib/checkpoints/conversion/conversion_input.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/model/merge_adapter.hpp"
#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/programs/megatron/megatron_source.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/quantize.hpp"

namespace fsdp {
namespace {

/// The parameter shapes from the options or from the checkpoint; nothing when neither has them.
std::optional<ParameterShapes> find_shapes(const Source& source, const SourceChanges& changes) {
  if (!changes.param_shapes.empty()) return read_parameter_shapes(changes.param_shapes);
  if (!changes.model_config.empty()) return parameter_shapes_of_config(changes.model_config);
  if (!changes.reference.empty()) return parameter_shapes_of_reference(changes.reference);
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
  throw RequestError(
      fmt::format(
          "{}: an FSDP1 local state holds flat parameters without names and shapes, which must come from elsewhere",
          path.string()),
      Remedy::shapes);
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
std::shared_ptr<const Source> as_numbers(std::shared_ptr<const Source> source, const SourceChanges& changes) {
  const auto directory = source->info().directory;
  const bool is_gpt2 = is_gpt2_directory(directory);
  if (is_gpt2) refuse_part_in_4_bits(*source);
  source = dequantize(std::move(source));
  const bool turned = conv1d_layout(*source).value_or(false);
  if (changes.merge_adapter.empty() && (turned || !is_gpt2)) return source;
  if (turned) source = gpt2_as_mingpt(std::move(source), directory);
  if (!changes.merge_adapter.empty()) {
    source = language_model(std::move(source));
    // The merge writes --dtype itself, so that values are rounded once.
    const auto result = changes.dtype;
    source = merge_adapter(std::move(source), changes.merge_adapter, result);
  }
  return turned || is_gpt2 ? map_names(std::move(source), NameMap::mingpt_to_gpt2, nullptr) : std::move(source);
}

/// Quantizes to 4 bits. Codes are always of [out, in], so matrices of [in, out] (Conv1D) are transposed first.
std::shared_ptr<const Source> in_4_bits(std::shared_ptr<const Source> source, const SourceChanges& changes) {
  const auto directory = source->info().directory;
  if (conv1d_layout(*source).value_or(has_conv1d_matrices(directory)))
    source = gpt2_as_mingpt(std::move(source), directory);
  return quantize_nf4(std::move(source), changes.quantize);
}

}  // namespace

void refuse_nothing(const Source& source, const Source& original, const std::filesystem::path& path) {
  const auto& tensors = source.tensors();
  if (std::ranges::any_of(tensors, [](const auto& tensor) { return num_elements(tensor.shape) > 0; })) return;
  const auto what = tensors.empty() ? std::string("no tensor")
                                    : format_count_of(std::ssize(tensors), "tensor") + " without an element";
  throw FormatError(fmt::format("{}: holds {}, so there is nothing to convert or check{}", path.string(), what,
                                is_deepspeed_file(original) ? ". " + deepspeed_advice() : ""));
}

std::shared_ptr<const Source> open_input(const std::filesystem::path& path, const SourceChanges& changes,
                                         bool must_unflatten) {
  std::shared_ptr<const Source> source = open_source(path);
  if (!is_local_state(*source)) {
    if (!changes.optim_files.empty()) {
      throw RequestError(
          path.string() + ": is no FSDP1 local state, and further files of an optimizer go with one only",
          Remedy::of_optim_files);
    }
    if (!is_megatron(*source) || changes.map == NameMap::none) return source;
    try {
      return megatron_as_hf(source, changes.model_config.empty() ? changes.config_from : changes.model_config);
    } catch (const Error&) {
      if (must_unflatten) throw;
      return source;
    }
  }
  auto shapes = find_shapes(*source, changes);
  if (!shapes && must_unflatten) refuse_without_shapes(path);
  if (!shapes) return source;
  UnFlattenOptions un_flattening;
  un_flattening.shapes = std::move(*shapes);
  un_flattening.ties = changes.ties;
  un_flattening.optim_files = changes.optim_files;
  return un_flatten(std::move(source), un_flattening);
}

std::shared_ptr<const Source> transformed(std::shared_ptr<const Source> source, const SourceChanges& changes) {
  const auto map = changes.map.value_or(NameMap::none);
  const bool changes_values = changes.dequantize || !changes.merge_adapter.empty() || changes.dtype ||
                              changes.quantize.enabled() || map != NameMap::none;
  const bool has_fp8 = changes.dequantize && !find_stored_fp8(*source).empty();
  if (has_fp8) source = dequantize_fp8(std::move(source));
  if (changes_values && !has_fp8) refuse_other_quantization(*source);
  if (changes.dequantize && !has_fp8 && find_stored_nf4(*source).empty())
    throw FormatError(source->info().directory.string() +
                          ": has no matrix in 4 bits, and none in float8 with scales of blocks, so there is "
                          "nothing to make numbers of",
                      Remedy::no_dequantize);
  // Must come before names change, since adapters have the names of the base.
  if (changes.dequantize || !changes.merge_adapter.empty()) source = as_numbers(std::move(source), changes);
  if (changes.select.changes_anything()) source = select(std::move(source), changes.select);
  if (map != NameMap::none) {
    auto model = known_model(*source, changes);
    const auto beside = source->info().directory / "config.json";
    std::error_code error;
    // Heads lie in another order in Meta's files, so their number is needed.
    if (!model && (map == NameMap::hf_to_meta || map == NameMap::llama_to_hf) &&
        std::filesystem::is_regular_file(beside, error))
      model = read_model_config(beside);
    source = map_names(std::move(source), map, model ? &*model : nullptr);
  }
  if (changes.as_megatron) {
    const bool is_short = changes.dtype && dtype_size_bytes(*changes.dtype) == 2;
    const auto model = config_after_merge(*changes.as_megatron, *source, changes);
    source = hf_as_megatron(std::move(source), model, /*masters=*/is_short);
  }
  if (changes.dtype) source = cast(std::move(source), *changes.dtype);
  if (changes.quantize.enabled()) source = in_4_bits(std::move(source), changes);
  return source;
}

}  // namespace fsdp
