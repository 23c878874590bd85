// Parameter shapes from a full checkpoint of the same model.
#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "lib/base/error.hpp"
#include "lib/files/read/torch_source.hpp"
#include "lib/files/transform/local_state.hpp"
#include "lib/files/transform/select_model.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kStepBytes = 1u << 20;
constexpr std::uint64_t kBeginningBytes = 64u << 10;

std::vector<std::byte> read_range(const Source& source, std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  std::vector<std::byte> bytes(count * dtype_size_bytes(source.tensors()[tensor].dtype));
  source.read(tensor, first, count, bytes, nullptr);
  return bytes;
}

std::uint64_t elements_of(const Source& source, std::size_t tensor) {
  return static_cast<std::uint64_t>(num_elements(source.tensors()[tensor].shape));
}

std::uint64_t elements_in(const Source& source, std::size_t tensor, std::uint64_t bytes) {
  const auto all = elements_of(source, tensor);
  if (source.prefers_whole(tensor)) return all;
  return std::min<std::uint64_t>(all, bytes / dtype_size_bytes(source.tensors()[tensor].dtype));
}

bool is_constant(const std::vector<std::byte>& bytes, std::size_t item) {
  return std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(item), bytes.end(), bytes.begin());
}

bool equal(const Source& source, std::size_t a, std::size_t b) {
  const auto all = elements_of(source, a), step = std::max<std::uint64_t>(1, elements_in(source, a, kStepBytes));
  for (std::uint64_t first = 0; first < all; first += step) {
    const auto part = std::min(step, all - first);
    if (read_range(source, a, first, part) != read_range(source, b, first, part)) return false;
  }
  return true;
}

/// True for two tensors that are one view of one storage.
bool share_storage(const Source& source, std::size_t a, std::size_t b) {
  const auto* torch = dynamic_cast<const TorchSource*>(&source);
  return torch != nullptr && torch->storage_number(a) == torch->storage_number(b) &&
         torch->view(a).storage_offset == torch->view(b).storage_offset &&
         torch->view(a).strides == torch->view(b).strides;
}

/// For each tensor of `numbers` the earlier one that has the same content, if any.
std::map<std::size_t, std::size_t> find_equal(const Source& source, const std::vector<std::size_t>& numbers) {
  std::map<std::pair<DType, Shape>, std::vector<std::size_t>> alike;
  for (const auto i : numbers) alike[{source.tensors()[i].dtype, source.tensors()[i].shape}].push_back(i);
  std::map<std::size_t, std::size_t> found_equal;
  for (const auto& [kind, group] : alike) {
    if (group.size() < 2 || num_elements(kind.second) == 0) continue;
    std::unordered_map<std::size_t, std::vector<std::size_t>> by_hash;  // of the beginning
    for (std::size_t at = 0; at < group.size(); ++at) {
      const auto i = group[at];
      const auto one = std::find_if(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(at),
                                    [&](std::size_t other) { return share_storage(source, other, i); });
      if (one != group.begin() + static_cast<std::ptrdiff_t>(at)) {
        found_equal.emplace(i, *one);
        continue;
      }
      const auto beginning = read_range(source, i, 0, elements_in(source, i, kBeginningBytes));
      if (is_constant(beginning, dtype_size_bytes(kind.first))) continue;
      const std::string_view text(reinterpret_cast<const char*>(beginning.data()), beginning.size());
      auto& others = by_hash[std::hash<std::string_view>()(text)];
      const auto same = [&](std::size_t other) { return equal(source, other, i); };
      const auto found = std::find_if(others.begin(), others.end(), same);
      if (found == others.end()) {
        others.push_back(i);
      } else {
        found_equal.emplace(i, *found);
      }
    }
  }
  return found_equal;
}

/// Layers 0, 1, ... of `marker` ("transformer.h.") among the names.
std::int64_t count_layers(const std::unordered_map<std::string_view, std::size_t>& names, const std::string& marker,
                          const std::string& member) {
  std::int64_t layers = 0;
  while (names.contains(marker + std::to_string(layers) + member)) ++layers;
  return layers;
}

/// The order of named_parameters() when the names are those of an architecture we know; empty else.
std::vector<std::string> known_order(const std::unordered_map<std::string_view, std::size_t>& names) {
  ModelConfig config;
  if (names.contains("transformer.wte.weight")) {
    config.num_layers = count_layers(names, "transformer.h.", ".ln_1.weight");
  } else if (names.contains("model.embed_tokens.weight")) {
    config.architecture = Architecture::llama;
    config.num_layers = count_layers(names, "model.layers.", ".post_attention_layernorm.weight");
    const auto has = [&](const char* member) { return names.contains("model.layers.0." + std::string(member)); };
    config.attention_bias = has("self_attn.o_proj.bias");
    config.mlp_bias = has("mlp.gate_proj.bias");
    config.traits.qkv_bias = has("self_attn.q_proj.bias");
    config.traits.fused_projections = has("self_attn.qkv_proj.weight");
    config.traits.pre_norms = has("input_layernorm.weight");
    config.traits.post_norms = has("post_feedforward_layernorm.weight");
    if (has("self_attn.q_norm.weight")) config.traits.head_norm = HeadNorm::per_head;
  } else {
    return {};
  }
  std::vector<std::string> order;
  for (auto& spec : parameter_table(config)) order.push_back(std::move(spec.name));
  if (order.back() != "lm_head.weight") order.emplace_back("lm_head.weight");
  return order;
}

}  // namespace

ParameterShapes parameter_shapes_of_reference(const std::filesystem::path& checkpoint) {
  const auto source = open_source(checkpoint);
  if (is_local_state(*source)) {
    throw FormatError(checkpoint.string() + ": a reference must be a full checkpoint; this is a local state itself");
  }
  const auto model = model_part(*source);
  std::vector<std::size_t> numbers;
  std::vector<std::string> stripped(source->tensors().size());
  for (std::size_t i = 0; i < stripped.size(); ++i) {
    if (!model.contains[i]) continue;
    stripped[i] = source->tensors()[i].name.substr(model.prefix.size());
    numbers.push_back(i);
  }
  const bool keeps_order = source->info().format.starts_with("torch");
  if (!keeps_order) {
    std::unordered_map<std::string_view, std::size_t> names;
    for (const auto i : numbers) names.emplace(stripped[i], i);
    std::vector<std::size_t> ordered;
    for (const auto& name : known_order(names)) {
      const auto it = names.find(name);
      if (it == names.end()) continue;
      ordered.push_back(it->second);
      names.erase(it);
    }
    if (ordered.empty()) {
      throw UsageError(
          checkpoint.string() + ": a " + source->info().format +
          " does not keep the order of the model's parameters, and the names are of no model that is known "
          "here; give a .pt or --param-shapes");
    }
    // Buffers; whether they fit is found out later.
    for (const auto i : numbers) {
      if (names.contains(stripped[i])) ordered.push_back(i);
    }
    numbers = std::move(ordered);
  }
  const auto earlier = find_equal(*source, numbers);
  ParameterShapes shapes;
  shapes.origin = checkpoint.string();
  for (const auto i : numbers) {
    if (const auto it = earlier.find(i); it != earlier.end()) {
      shapes.ties.emplace_back(stripped[i], stripped[it->second]);
    } else {
      shapes.parameters.push_back({stripped[i], source->tensors()[i].shape});
    }
  }
  return shapes;
}

}  // namespace fsdp
