#include "lib/training/state/model_sizes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {

std::int64_t block_of(const std::string& name) {
  const auto blocks = std::ranges::find_if(block_prefixes(), [&](auto prefix) { return name.starts_with(prefix); });
  if (blocks == block_prefixes().end()) return -1;
  std::int64_t block = -1;
  const auto* begin = name.data() + blocks->size();
  const auto result = std::from_chars(begin, name.data() + name.size(), block);
  const bool is_number = result.ec == std::errc() && result.ptr != begin && *result.ptr == '.' && *begin != '-';
  return is_number ? block : -1;
}

namespace {

constexpr const char *kEmbedding = "transformer.wte.weight", *kTiedHead = "lm_head.weight";

/// A size of the model as one of the checkpoint's tensors shows it.
struct ShownSize {
  const char* option;
  std::vector<std::string> arguments;  ///< its names in `args`
  std::int64_t value = 0;
  std::string tensor;  ///< that shows it, as the checkpoint names it
  Shape shape;
};

/// The dim-th size of a two-dimensional parameter.
ShownSize shown_by(const Checkpoint& checkpoint, const char* option, std::vector<std::string> arguments,
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

/// The last block, named by one of its tensors.
ShownSize shown_blocks(const Checkpoint& checkpoint) {
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
void check(const Checkpoint& checkpoint, const RequestedModel& wish, const ShownSize& size) {
  const auto shows =
      fmt::format("'{}' has shape [{}], which means {}", size.tensor, fmt::join(size.shape, ", "), size.value);
  if (const auto given = wish.sizes.find(size.option); given != wish.sizes.end()) {
    if (given->second == size.value) return;
    throw RequestError(
        fmt::format("{} {} contradicts {}, whose {}", size.option, given->second, checkpoint.path().string(), shows),
        {Remedy::leave_size_out, size.option});
  }
  if (const auto said = checkpoint.argument(size.arguments); said && *said != size.value) {
    throw FormatError(
        fmt::format("{}: its args say {} {}, but {}", checkpoint.path().string(), size.arguments.front(), *said, shows),
        {Remedy::give_size, fmt::format("{} {}", size.option, size.value)});
  }
}

}  // namespace

ModelConfig model_of_tensors(const Checkpoint& checkpoint, const RequestedModel& wish) {
  if (wish.config) return *wish.config;
  std::error_code error;
  const auto& beside = checkpoint.source().info().directory;
  if (std::filesystem::is_directory(checkpoint.path(), error) && std::filesystem::exists(beside / "config.json", error))
    return read_model_config(beside);
  if (const auto config = checkpoint.source().model_config(); config.is_object())
    return model_config_from_json(config, checkpoint.path().string());
  if (!checkpoint.parameter("transformer.wpe.weight")) {
    throw RequestError(checkpoint.path().string() +
                           " holds a Llama-like model, whose heads and rotary positions show in no tensor: a "
                           "directory with its config.json is needed",
                       Remedy::name_config);
  }
  const auto* embedding = checkpoint.parameter(kEmbedding) ? kEmbedding : kTiedHead;
  const auto vocabulary = shown_by(checkpoint, "vocab-size", {"vocab_size"}, embedding, 0);
  const auto width = shown_by(checkpoint, "embed-size", {"embed_size", "n_embd"}, embedding, 1);
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
    throw RequestError(
        fmt::format("{} does not say how many attention heads its model has", checkpoint.path().string()),
        Remedy::give_num_heads);
  }
  config.num_heads = heads;
  config.validate();
  return config;
}

}  // namespace fsdp
