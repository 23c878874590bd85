#include "lib/checkpoint/import_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr const char* kEmbedding = "transformer.wte.weight";

/// A size of the model as one of the checkpoint's tensors shows it.
struct ShownSize {
  const char* option;
  std::vector<std::string> arguments;  ///< its names in `args`
  std::int64_t value = 0;
  std::string tensor;  ///< that shows it, as the checkpoint names it
  Shape shape;
};

/// The dim-th size of a two-dimensional parameter.
ShownSize shown_by(const ExternalCheckpoint& checkpoint, const char* option, std::vector<std::string> arguments,
                   const std::string& parameter, std::size_t dim) {
  const auto index = checkpoint.parameter(parameter);
  if (!index) throw FormatError(checkpoint.path().string() + ": parameter '" + parameter + "' is missing");
  const auto& tensor = checkpoint.source().tensors()[*index];
  if (tensor.shape.size() != 2) {
    throw FormatError(fmt::format("{}: '{}' has shape [{}], two dimensions were expected", checkpoint.path().string(),
                                  tensor.name, fmt::join(tensor.shape, ", ")));
  }
  return {option, std::move(arguments), tensor.shape[dim], tensor.name, tensor.shape};
}

/// Block number in "transformer.h.<number>.<rest>" or "model.layers.<number>.<rest>"; -1 when the name is none of a
/// block.
std::int64_t block_of(const std::string& name) {
  const std::string_view blocks = name.starts_with("model.") ? "model.layers." : "transformer.h.";
  if (!name.starts_with(blocks)) return -1;
  std::int64_t block = -1;
  const auto* begin = name.data() + blocks.size();
  const auto result = std::from_chars(begin, name.data() + name.size(), block);
  const bool is_number = result.ec == std::errc() && result.ptr != begin && *result.ptr == '.' && *begin != '-';
  return is_number ? block : -1;
}

/// The last block, named by one of its tensors.
ShownSize shown_blocks(const ExternalCheckpoint& checkpoint) {
  ShownSize size{"num-layers", {"num_layers", "n_layer"}, 0, "", {}};
  for (const auto& name : checkpoint.model_names()) {
    const auto block = block_of(name);
    if (block < size.value) continue;
    const auto& tensor = checkpoint.source().tensors()[*checkpoint.parameter(name)];
    size.value = block + 1;
    size.tensor = tensor.name;
    size.shape = tensor.shape;
  }
  if (size.value == 0)
    throw FormatError(checkpoint.path().string() + ": holds no transformer block ('transformer.h.0...')");
  return size;
}

/// Options win over `args`; either must agree with the tensor.
void check(const ExternalCheckpoint& checkpoint, const ModelWish& wish, const ShownSize& size) {
  const auto shows =
      fmt::format("'{}' has shape [{}], which means {}", size.tensor, fmt::join(size.shape, ", "), size.value);
  if (const auto given = wish.sizes.find(size.option); given != wish.sizes.end()) {
    if (given->second == size.value) return;
    throw UsageError(fmt::format("--{} {} contradicts {}, whose {}: leave the option out", size.option, given->second,
                                 checkpoint.path().string(), shows));
  }
  if (const auto said = checkpoint.argument(size.arguments); said && *said != size.value) {
    throw FormatError(fmt::format("{}: its args say {} {}, but {}: give --{} {} if the tensors are right",
                                  checkpoint.path().string(), size.arguments.front(), *said, shows, size.option,
                                  size.value));
  }
}

}  // namespace

ModelConfig external_model(const ExternalCheckpoint& checkpoint, const ModelWish& wish) {
  if (wish.config) return *wish.config;
  std::error_code error;
  const auto& beside = checkpoint.source().info().directory;
  if (std::filesystem::is_directory(checkpoint.path(), error) && std::filesystem::exists(beside / "config.json", error))
    return read_model_config(beside);
  if (checkpoint.parameter("model.embed_tokens.weight") && !checkpoint.parameter("transformer.wpe.weight")) {
    throw UsageError(checkpoint.path().string() +
                     " holds a Llama, whose heads and rotary positions show in no tensor: name a directory with its "
                     "config.json (--model of fsdp-finetune, --model-config of fsdp-eval)");
  }
  const auto vocabulary = shown_by(checkpoint, "vocab-size", {"vocab_size"}, kEmbedding, 0);
  const auto width = shown_by(checkpoint, "embed-size", {"embed_size", "n_embd"}, kEmbedding, 1);
  const auto positions = shown_by(checkpoint, "", {}, "transformer.wpe.weight", 0);
  const auto hidden =
      shown_by(checkpoint, "ffn-hidden-size", {"ffn_hidden_size", "n_hidden"}, "transformer.h.0.mlp.c_fc.weight", 0);
  const auto layers = shown_blocks(checkpoint);
  for (const auto* size : {&vocabulary, &width, &hidden, &layers}) check(checkpoint, wish, *size);

  ModelConfig config;
  config.vocab_size = vocabulary.value;
  config.embed_size = width.value;
  config.block_size = positions.value;
  config.ffn_hidden_size = hidden.value;
  config.num_layers = layers.value;
  const auto given = wish.sizes.find("num-heads");
  const auto heads =
      given != wish.sizes.end() ? given->second : checkpoint.argument({"num_heads", "n_head", "n_heads"}).value_or(0);
  if (heads == 0 && given == wish.sizes.end()) {
    throw UsageError(
        fmt::format("{} does not say how many attention heads its model has: give --num-heads, or "
                    "a directory with its config.json",
                    checkpoint.path().string()));
  }
  config.num_heads = heads;
  config.validate();
  return config;
}

std::vector<std::size_t> plan_parameters(const ExternalCheckpoint& checkpoint, const ModelConfig& config) {
  const auto file = checkpoint.path().string();
  std::vector<std::size_t> plan;
  const auto check_fit = [&](std::size_t index, const Shape& shape) {
    const auto& tensor = checkpoint.source().tensors()[index];
    if (tensor.shape != shape) {
      throw FormatError(fmt::format("{}: '{}' has shape [{}], the model needs [{}]{}", file, tensor.name,
                                    fmt::join(tensor.shape, ", "), fmt::join(shape, ", "),
                                    tensor.shape.size() == 2 && shape == Shape{tensor.shape[1], tensor.shape[0]}
                                        ? ": transposed, as GPT-2's are: name its directory with the config.json, or "
                                          "make a minGPT of it (fsdp-ckpt-convert --map gpt2-to-mingpt)"
                                        : ""));
    }
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f16 &&
        tensor.dtype != DType::f64) {
      throw FormatError(fmt::format("{}: '{}' is {}, a parameter must be float64, float32, bfloat16 or float16", file,
                                    tensor.name, torch_name(tensor.dtype)));
    }
  };
  for (const auto& spec : parameter_table(config)) {
    const auto index = checkpoint.parameter(spec.name);
    if (!index) {
      throw FormatError(fmt::format(
          "{}: parameter '{}' is missing{}", file, spec.name,
          spec.name.ends_with(".bias") ? ": models without biases are not supported" : " (the model's sizes need it)"));
    }
    check_fit(*index, spec.shape);
    plan.push_back(*index);
  }
  for (const auto& name : checkpoint.model_names()) {
    if (block_of(name) >= config.num_layers) {
      throw FormatError(
          fmt::format("{}: '{}' belongs to no block of the model, which has {}", file, name, config.num_layers));
    }
  }
  if (const auto head = checkpoint.parameter("lm_head.weight"))
    check_fit(*head, {config.vocab_size, config.embed_size});
  return plan;
}

}  // namespace fsdp
