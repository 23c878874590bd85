#include "lib/tokenizer/tokenizer_config.hpp"

#include <charconv>
#include <limits>
#include <map>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMaxGap = 1 << 16;  // a vocabulary padded for the hardware has gaps, but not large ones

/// A token's name, alone or in {"content": name, ...}.
std::optional<std::string> token_name(const JsonValue& value) {
  if (value.is_null()) return {};
  return value.is_object() ? value.at("content").string() : value.string();
}

std::int32_t checked_id(const JsonValue& value, std::int64_t id) {
  if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) value.fail("has id " + std::to_string(id));
  return static_cast<std::int32_t>(id);
}

std::int32_t id_from_key(const std::string& key, const JsonValue& value) {
  std::int32_t id = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size()) value.fail("is not named by a token id");
  return checked_id(value, id);
}

void read_config(const JsonValue& root, TokenizerConfig& config, std::map<std::int32_t, AddedToken>& added) {
  const auto flag = [&](const char* key) {
    const JsonValue value = root.get(key);
    return value.is_null() ? std::nullopt : std::optional(value.boolean());
  };
  config.add_bos = flag("add_bos_token");
  config.add_eos = flag("add_eos_token");
  config.add_prefix_space = flag("add_prefix_space");
  config.bos_token = token_name(root.get("bos_token"));
  config.eos_token = token_name(root.get("eos_token"));
  config.prefix_token = token_name(root.get("prefix_token")).value_or(config.prefix_token);
  config.suffix_token = token_name(root.get("suffix_token")).value_or(config.suffix_token);
  config.middle_token = token_name(root.get("middle_token")).value_or(config.middle_token);
  config.end_token = token_name(root.get("eot_token")).value_or(config.end_token);
  const JsonValue decoder = root.get("added_tokens_decoder");
  if (decoder.is_null()) return;
  for (const auto& [key, json] : decoder.object().items()) {
    const JsonValue value = decoder.get(key);
    AddedToken token = read_added_token(value);
    token.id = id_from_key(key, value);
    added[token.id] = std::move(token);
  }
}

}  // namespace

AddedToken read_added_token(const JsonValue& value) {
  AddedToken token;
  token.text = value.at("content").string();
  token.special = value.boolean("special", false);
  token.normalized = value.boolean("normalized", !token.special);
  token.single_word = value.boolean("single_word", false);
  token.lstrip = value.boolean("lstrip", false);
  token.rstrip = value.boolean("rstrip", false);
  return token;
}

TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory) {
  TokenizerConfig config;
  std::map<std::int32_t, AddedToken> added;
  const auto added_file = directory / "added_tokens.json";
  const auto config_file = directory / "tokenizer_config.json";
  config.where = added_file.string();
  if (std::filesystem::exists(added_file)) {
    const auto json = read_json_object(added_file);
    const JsonValue root(json, added_file.string());
    for (const auto& [name, id] : json.items()) {
      const JsonValue value = root.get(name);
      AddedToken token;
      token.id = checked_id(value, value.integer());
      token.text = name;
      const auto [other, is_new] = added.emplace(token.id, token);
      if (!is_new) value.fail("has id " + std::to_string(token.id) + " as '" + other->second.text + "' has");
    }
  }
  if (std::filesystem::exists(config_file)) {
    const auto json = read_json_object(config_file);
    config.where = config_file.string();
    read_config(JsonValue(json, config_file.string()), config, added);
  }
  for (auto& [id, token] : added) config.added_tokens.push_back(std::move(token));
  return config;
}

void add_to_vocabulary(const std::vector<AddedToken>& tokens, const std::string& where, TokenTexts& texts) {
  const std::int64_t limit = texts.size() + static_cast<std::int64_t>(tokens.size()) + kMaxGap;
  for (const AddedToken& token : tokens) {
    if (token.id < 0 || token.id >= limit) {
      throw FormatError(where + ": added token '" + token.text + "' has id " + std::to_string(token.id) +
                        ", but the vocabulary has " + std::to_string(texts.size()) + " ids");
    }
    texts.set(token.id, token.text);
  }
}

std::optional<std::int32_t> find_token(const std::string& name, const std::vector<AddedToken>& tokens,
                                       const PieceIds& pieces) {
  for (const AddedToken& token : tokens) {
    if (token.text == name) return token.id;
  }
  const std::int32_t id = pieces.find(name);
  return id == PieceIds::kNoId ? std::nullopt : std::optional(id);
}

}  // namespace fsdp
