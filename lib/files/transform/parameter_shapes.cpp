#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/files/transform/local_state.hpp"

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

/// The one parameter that is named like a token embedding, or "".
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
  num_elements(shape);  // refuses overflow
  return shape;
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
    // Conv1D, which transformers' GPT-2 uses for all matrices of a block, keeps them transposed.
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
  // run.json of fsdp-finetune keeps the configuration under "model".
  if (json.is_object() && json.contains("model") && json["model"].is_object()) {
    return parameter_shapes_of_json(json["model"], file.string());
  }
  return parameter_shapes_of_json(json, file.string());
}

}  // namespace fsdp
