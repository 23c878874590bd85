// Parameter shapes from a file of shapes, a model configuration, or a full checkpoint of the same model.
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/torch_save/torch_source.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {
namespace {

nlohmann::json read_json(const std::filesystem::path& file) {
  constexpr std::uint64_t kMost = 64u << 20;
  try {
    const auto text = read_text_file(file, kMost);
    return parse_json(text, file.string());
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(file.string(), error.byte, "not valid JSON");
  }
}

bool is_head(std::string_view name) {
  constexpr std::array<std::string_view, 5> kHeads{"lm_head", "output", "head", "embed_out", "output_layer"};
  const auto weight = name.rfind(".weight");
  if (weight == std::string_view::npos || weight + 7 != name.size()) return false;
  const auto module = name.substr(0, weight);
  return std::find(kHeads.begin(), kHeads.end(), module.substr(module.rfind('.') + 1)) != kHeads.end();
}

/// The single parameter with the name of a token embedding, or "".
std::string token_embedding(const ParameterShapes& shapes) {
  constexpr std::array<std::string_view, 5> kEmbeddings{"wte", "embed_tokens", "tok_embeddings", "word_embeddings",
                                                        "embed_in"};
  std::string found;
  for (const auto& entry : shapes.parameters) {
    for (const auto embedding : kEmbeddings) {
      const auto ending = std::string(embedding) + ".weight";
      const bool named = entry.name == ending || entry.name.ends_with("." + ending);
      if (named && !found.empty()) return "";
      if (named) found = entry.name;
    }
  }
  return found;
}

Shape shape_from_json(const nlohmann::json& json, const std::string& where) {
  if (!json.is_array()) throw FormatError(where + ": the shape should be an array of sizes");
  Shape shape;
  for (const auto& size : json) {
    if (!size.is_number_integer() || size < 0) throw FormatError(where + ": " + json_text(size) + " is no size");
    shape.push_back(size.get<std::int64_t>());
  }
  num_elements(shape);  // throws when the number overflows
  return shape;
}

constexpr std::uint64_t kBeginningBytes = 64u << 10;

std::vector<std::byte> read_range(const Source& source, std::size_t tensor, std::uint64_t first, std::uint64_t count) {
  std::vector<std::byte> bytes(count * dtype_size_bytes(source.tensors()[tensor].dtype));
  source.read(tensor, first, count, bytes, nullptr);
  return bytes;
}

std::uint64_t elements_of(const Source& source, std::size_t tensor) {
  return element_count(source.tensors()[tensor].shape);
}

std::uint64_t elements_in(const Source& source, std::size_t tensor, std::uint64_t bytes) {
  const auto all = elements_of(source, tensor);
  if (source.prefers_whole(tensor)) return all;
  return std::min<std::uint64_t>(all, bytes / dtype_size_bytes(source.tensors()[tensor].dtype));
}

bool is_constant(const std::vector<std::byte>& bytes, std::size_t item) {
  return std::equal(iterator_at(bytes, item), bytes.end(), bytes.begin());
}

/// True when two tensors are the same view of one storage.
bool share_storage(const Source& source, std::size_t a, std::size_t b) {
  const auto* torch = dynamic_cast<const TorchSource*>(&source);
  return torch != nullptr && torch->storage_number(a) == torch->storage_number(b) &&
         torch->view(a).storage_offset == torch->view(b).storage_offset &&
         torch->view(a).strides == torch->view(b).strides;
}

/// For each tensor of `numbers`, the earlier one with the same content, if any.
std::map<std::size_t, std::size_t> find_equal(const Source& source, const std::vector<std::size_t>& numbers) {
  std::map<std::pair<DType, Shape>, std::vector<std::size_t>> alike;
  for (const auto i : numbers) alike[{source.tensors()[i].dtype, source.tensors()[i].shape}].push_back(i);
  std::map<std::size_t, std::size_t> found_equal;
  for (const auto& [kind, group] : alike) {
    if (group.size() < 2 || num_elements(kind.second) == 0) continue;
    std::unordered_map<std::size_t, std::vector<std::size_t>> by_hash;  // by hash of the first bytes
    for (std::size_t at = 0; at < group.size(); ++at) {
      const auto i = group[at];
      const auto one = std::find_if(group.begin(), iterator_at(group, at),
                                    [&](std::size_t other) { return share_storage(source, other, i); });
      if (one != iterator_at(group, at)) {
        found_equal.emplace(i, *one);
        continue;
      }
      const auto beginning = read_range(source, i, 0, elements_in(source, i, kBeginningBytes));
      if (is_constant(beginning, dtype_size_bytes(kind.first))) continue;
      const std::string_view text(reinterpret_cast<const char*>(beginning.data()), beginning.size());
      auto& others = by_hash[std::hash<std::string_view>()(text)];
      const auto same = [&](std::size_t other) { return detail::are_equal(source, other, i); };
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

}  // namespace

ParameterShapes read_parameter_shapes(const std::filesystem::path& file) {
  const auto json = read_json(file);
  const auto list = json.is_object() ? json.find("parameters") : json.end();
  if (list == json.end() || !list->is_array()) {
    throw FormatError(file.string() + ": an object with an array \"parameters\" of {\"fqn\", \"shape\"} was expected");
  }
  ParameterShapes shapes;
  shapes.origin = file.string();
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto& entry = (*list)[i];
    const auto where = file.string() + ": parameters[" + std::to_string(i) + "]";
    if (!entry.is_object() || !entry.contains("fqn") || !entry["fqn"].is_string() || !entry.contains("shape")) {
      throw FormatError(where + ": an object with the fields \"fqn\" and \"shape\" was expected");
    }
    auto name = entry["fqn"].get<std::string>();
    if (!names.insert(name).second) throw FormatError(where + ": \"" + name + "\" is listed twice");
    auto shape = shape_from_json(entry["shape"], where + " (" + name + ")");
    shapes.parameters.push_back({std::move(name), std::move(shape)});
  }
  const auto all = json.find("all_names_including_tied");
  if (all == json.end()) return shapes;
  if (!all->is_array()) throw FormatError(file.string() + ": \"all_names_including_tied\" should be an array of names");
  for (const auto& name : *all) {
    if (!name.is_string()) throw FormatError(file.string() + ": " + json_text(name) + " is no name");
    const auto text = name.get<std::string>();
    if (names.insert(text).second) shapes.ties.emplace_back(text, is_head(text) ? token_embedding(shapes) : "");
  }
  return shapes;
}

ParameterShapes parameter_shapes_of_json(const nlohmann::json& config, const std::string& origin) {
  if (!config.is_object()) throw FormatError(origin + ": a JSON object was expected");
  const bool gpt2 = config.contains("model_type") && config["model_type"] == "gpt2";
  const auto model = gpt2 ? model_config_from_hf(config, origin) : model_config_from_json(config, origin);
  ParameterShapes shapes;
  shapes.origin = origin;
  for (auto& spec : parameter_table(model)) {
    // Conv1D, which transformers' GPT-2 uses for all matrices of a block, stores them transposed.
    if (gpt2 && spec.is_matrix_of_block()) std::swap(spec.shape[0], spec.shape[1]);
    shapes.parameters.push_back({std::move(spec.name), std::move(spec.shape)});
  }
  shapes.ties = tied_names(model);
  return shapes;
}

ParameterShapes parameter_shapes_of_config(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  auto file = directory_or_file;
  if (std::filesystem::is_directory(file, ignored)) {
    file = directory_or_file / "config.json";
    if (!std::filesystem::exists(file, ignored)) file = directory_or_file / "run.json";
    if (!std::filesystem::exists(file, ignored)) {
      throw MissingInput(directory_or_file.string() + ": there is neither config.json nor run.json");
    }
  }
  auto json = read_json(file);
  // run.json of fsdp-finetune has the configuration under "model".
  if (json.is_object() && json.contains("model") && json["model"].is_object()) {
    return parameter_shapes_of_json(json["model"], file.string());
  }
  return parameter_shapes_of_json(json, file.string());
}

ParameterShapes parameter_shapes_of_reference(const std::filesystem::path& checkpoint) {
  const auto source = open_weights(checkpoint);
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
    for (const auto& name : parameter_order([&](const std::string& name) { return names.contains(name); })) {
      const auto it = names.find(name);
      if (it == names.end()) continue;
      ordered.push_back(it->second);
      names.erase(it);
    }
    if (ordered.empty()) {
      throw RequestError(
          checkpoint.string() + ": a " + source->info().format +
              " does not keep the order of the model's parameters, and the names are of no model that is known "
              "here",
          Remedy::param_shapes);
    }
    // The rest are buffers; later steps check whether they fit.
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
