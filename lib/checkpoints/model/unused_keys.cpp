#include "lib/checkpoints/model/unused_keys.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {
namespace {

/// Values of all kinds. A reader that looks at a key takes at most some of them.
const std::array<nlohmann::json, 10>& other_values() {
  static const std::array<nlohmann::json, 10> values{
      nullptr, true, false, 0, 7, 0.625, "?", nlohmann::json::array(), nlohmann::json::object(), {"?"}};
  return values;
}

bool means_the_same(const nlohmann::json& changed, const SameMeaning& has_same_meaning) {
  try {
    return has_same_meaning(changed);
  } catch (const Error&) {
    return false;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

/// \param place  of the object in `whole`
void find_unused(nlohmann::json& whole, const nlohmann::json::json_pointer& place, const std::string& prefix,
                 const SameMeaning& has_same_meaning, std::vector<std::string>& unused) {
  const auto object = whole.at(place);
  for (const auto& [key, value] : object.items()) {
    const auto here = place / key;
    whole.at(place).erase(key);
    bool is_used = !means_the_same(whole, has_same_meaning);
    for (const auto& other : other_values()) {
      if (is_used) break;
      whole[here] = other;
      is_used = !means_the_same(whole, has_same_meaning);
    }
    whole[here] = value;
    if (!is_used) unused.push_back(prefix + key);
    if (is_used && value.is_object()) find_unused(whole, here, prefix + key + ".", has_same_meaning, unused);
  }
}

/// \return null for a file that is not there, or is no object
nlohmann::json object_in(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return nullptr;
  auto json = parse_json_or_discard(read_text_file(file, 1u << 20), file.string());
  return json.is_object() ? json : nlohmann::json();
}

/// Reads all that a program takes of a config.json.
nlohmann::json meaning_of_config(const nlohmann::json& config) {
  const auto quantization = stored_quantization(config, "config.json").value_or(QuantizeConfig());
  return {model_config_to_json(model_config_from_json(config, "config.json")), quantization_to_json(quantization)};
}

/// Removes the keys that this program writes itself, with their values, because other programs want them.
void remove_own(std::vector<std::string>& keys, const nlohmann::json& object, const nlohmann::json& written) {
  std::erase_if(keys, [&](const auto& key) {
    return written.contains(key) && written.at(key) == object.value(key, nlohmann::json());
  });
}

}  // namespace

std::vector<std::string> unused_keys(const nlohmann::json& object, const SameMeaning& has_same_meaning) {
  std::vector<std::string> unused;
  auto changing = object;
  find_unused(changing, nlohmann::json::json_pointer(), "", has_same_meaning, unused);
  return unused;
}

Ignored ignored_in_config(const std::filesystem::path& directory_or_file) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(directory_or_file, error);
  const auto file = is_file ? directory_or_file : directory_or_file / "config.json";
  Ignored ignored;
  if (const auto config = object_in(file); !config.is_null()) {
    const auto meaning = meaning_of_config(config);
    auto unused = unused_keys(config, [&](const auto& changed) { return meaning_of_config(changed) == meaning; });
    remove_own(unused, config, hf_config(model_config_from_json(config, "config.json")));
    std::erase_if(unused,
                  [](const auto& key) { return key == "torch_dtype" || key == "dtype"; });  // the weights have it
    ignored.add(file.string(), unused);
  }
  if (is_file) return ignored;
  const auto generation = directory_or_file / "generation_config.json";
  if (auto json = object_in(generation); !json.is_null()) {
    for (const char* used : {"bos_token_id", "eos_token_id"}) json.erase(used);
    for (const auto& [key, value] : json.items()) ignored.add(generation.string(), {key});
  }
  return ignored;
}

Ignored ignored_in_adapter_config(const std::filesystem::path& directory) {
  Ignored ignored;
  const auto file = directory / kAdapterConfig;
  if (const auto json = object_in(file); !json.is_null()) {
    const auto adapter = adapter_config_from_json(json, kAdapterConfig);
    auto unused = unused_keys(
        json, [&](const auto& changed) { return adapter_config_from_json(changed, kAdapterConfig) == adapter; });
    // adapter_config_to_json() writes these for peft; the layout of the base's matrices and its path are the base's
    // own.
    remove_own(unused, json,
               {{"task_type", "CAUSAL_LM"},
                {"inference_mode", true},
                {"init_lora_weights", true},
                {"modules_to_save", nullptr},
                {"fan_in_fan_out", json.value("fan_in_fan_out", nlohmann::json())},
                {"base_model_name_or_path", json.value("base_model_name_or_path", nlohmann::json())}});
    ignored.add(file.string(), unused);
  }
  return ignored;
}

}  // namespace fsdp
