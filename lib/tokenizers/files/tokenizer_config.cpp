#include "lib/tokenizers/files/tokenizer_config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/tokenizers/gguf/gguf_tokenizer.hpp"

namespace fsdp {
namespace {

bool same_but_for_id(const AddedToken& a, const AddedToken& b) {
  return a.text == b.text && a.special == b.special && a.normalized == b.normalized && a.single_word == b.single_word &&
         a.lstrip == b.lstrip && a.rstrip == b.rstrip;
}

class AddedVocabulary {
 public:
  explicit AddedVocabulary(const VocabularyPieces& pieces) : pieces_(pieces) {}

  const AddedToken* find(const std::string& name) const {
    const auto id = ids_.find(name);
    return id == ids_.end() ? nullptr : &tokens_.at(id->second);
  }

  /// Adds a token. A name that is added again changes its flags, but a special token stays special.
  /// \param where  the file that states the id of the token, if any
  void add(AddedToken token, const std::string& where) {
    if (token.text.empty()) return;
    const std::int32_t written = token.id;
    token.id = id_of(token);
    if (written != AddedToken::kNoId && written != token.id) {
      throw FormatError(where + ": added token '" + token.text + "' has id " + std::to_string(written) +
                        ", but the tokenizers library gives it " + std::to_string(token.id) + " (the vocabulary has " +
                        std::to_string(pieces_.count) + " pieces): write that id, or fill the ids before it");
    }
    if (const AddedToken* known = find(token.text)) token.special = token.special || known->special;
    ids_[token.text] = token.id;
    tokens_[token.id] = std::move(token);
  }

  std::vector<AddedToken> tokens() const {
    std::vector<AddedToken> all;
    for (const auto& [id, token] : tokens_) all.push_back(token);
    return all;
  }

 private:
  std::int32_t id_of(const AddedToken& token) const {
    if (const AddedToken* known = find(token.text)) return known->id;
    if (const auto piece = pieces_.find(token.text)) return *piece;
    if (pieces_.renames && token.id >= 0 && token.id < pieces_.count) return token.id;
    const std::int64_t next = tokens_.empty() ? 0 : std::int64_t{tokens_.rbegin()->first} + 1;
    return static_cast<std::int32_t>(std::max(next, pieces_.count));
  }

  const VocabularyPieces& pieces_;
  std::map<std::string, std::int32_t> ids_;
  std::map<std::int32_t, AddedToken> tokens_;
};

constexpr std::int64_t kMaxGap = 1 << 16;  // a vocabulary that is padded for the hardware has small gaps

/// Returns the name of a token, given as text or as {"content": name, ...}.
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

constexpr std::string_view kTokenKey = "_token";
constexpr std::array<std::string_view, 7> kNamedKeys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                        "pad_token", "cls_token", "mask_token"};

/// Reads a token given as text or as an object with flags. \return nothing for null
std::optional<AddedToken> special_token(const JsonValue& value) {
  if (value.is_null()) return {};
  AddedToken token;
  if (value.is_object()) {
    token = read_added_token(value);
  } else {
    token.text = value.string();
  }
  token.id = AddedToken::kNoId;
  return token;
}

/// JSON with keys in the order of the file, in which new tokens get their ids.
std::vector<std::string> keys_in_order(const nlohmann::ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

/// The special tokens that tokenizer_config.json names, overridden by special_tokens_map.json.
class NamedTokens {
 public:
  void read(const JsonValue& root, const nlohmann::ordered_json& ordered) {
    for (const auto& key : keys_in_order(ordered)) {
      const JsonValue value = root.get(key);
      const bool known = std::find(kNamedKeys.begin(), kNamedKeys.end(), key) != kNamedKeys.end();
      const bool own = key.ends_with(kTokenKey) && (value.is_string() || value.is_object());
      if (known || own) set(key, special_token(value), !known);
    }
    for (const char* list : {"extra_special_tokens", "model_specific_special_tokens"}) {
      const JsonValue extra = root.get(list);
      if (extra.is_object()) {
        for (const auto& key : keys_in_order(ordered[list])) set(key, special_token(extra.get(key)), true);
      } else if (!extra.is_null()) {
        add_list(extra);
      }
    }
    const JsonValue additional = root.get("additional_special_tokens");
    if (list_.empty() && !additional.is_null()) add_list(additional);
  }

  std::optional<std::string> name(std::string_view key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() || !found->second ? std::nullopt : std::optional(found->second->text);
  }

  /// The keys that the last file with them sets to null.
  std::vector<std::string> null_keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, token] : by_key_)
      if (!token) keys.push_back(key);
    return keys;
  }

  std::vector<NamedToken> tokens() const {
    std::vector<NamedToken> all;
    const auto add = [&](std::string_view key) {
      const auto found = by_key_.find(key);
      if (found == by_key_.end() || !found->second) return;
      AddedToken token = *found->second;
      token.special = true;
      all.push_back({std::move(token), true, std::string(key)});
    };
    for (const auto key : kNamedKeys) add(key);
    for (const auto& key : own_keys_) add(key);
    for (const AddedToken& token : list_) all.push_back({token, false, {}});
    return all;
  }

 private:
  void set(const std::string& key, std::optional<AddedToken> token, bool is_own) {
    if (is_own && !by_key_.contains(key)) own_keys_.push_back(key);
    by_key_[key] = std::move(token);
  }
  void add_list(const JsonValue& list) {
    for (const JsonValue& value : list.elements()) {
      if (auto token = special_token(value)) list_.push_back(std::move(*token));
    }
  }

  std::map<std::string, std::optional<AddedToken>, std::less<>> by_key_;
  std::vector<std::string> own_keys_;  ///< keys of kinds of tokens that the model defines, in order
  std::vector<AddedToken> list_;
};

std::string without_fast(std::string name) {
  constexpr std::string_view fast = "Fast";
  if (name.ends_with(fast) && name != "PreTrainedTokenizerFast") name.resize(name.size() - fast.size());
  return name;
}

/// Returns the class that AutoTokenizer takes. For some model types it takes the class that the files name, for Qwen 2
/// always a class of its own.
std::string class_of(const std::string& hub_class, const std::string& model_type) {
  constexpr std::array<std::string_view, 14> as_the_files_say = {
      "mistral", "mistral3", "mixtral", "ministral", "ministral3", "pixtral",  "voxtral",
      "phi3",    "phimoe",   "olmo2",   "olmo3",     "granite",    "stablelm", "gpt_bigcode"};
  if (std::find(as_the_files_say.begin(), as_the_files_say.end(), model_type) != as_the_files_say.end())
    return "TokenizersBackend";
  return !hub_class.empty() && model_type == "qwen2" ? "Qwen2Tokenizer" : hub_class;
}

void read_class(const JsonValue& root, const std::filesystem::path& directory, TokenizerConfig& config) {
  config.hub_class = without_fast(root.optional_string("tokenizer_class").value_or(""));
  std::string model_type;
  if (const auto file = directory / "config.json"; std::filesystem::exists(file)) {
    const auto json = read_json_object(file);
    const JsonValue model(json, file.string());
    if (config.hub_class.empty())
      config.hub_class = without_fast(model.optional_string("tokenizer_class").value_or(""));
    if (model.get("model_type").is_string()) model_type = model.get("model_type").string();
  }
  config.token_class = class_of(config.hub_class, model_type);
}

void read_flags(const JsonValue& root, TokenizerConfig& config) {
  const auto flag = [&](const char* key) {
    const JsonValue value = root.get(key);
    return value.is_null() ? std::nullopt : std::optional(value.boolean());
  };
  config.add_bos = flag("add_bos_token");
  config.add_eos = flag("add_eos_token");
  config.add_prefix_space = flag("add_prefix_space");
  config.legacy = flag("legacy");
  if (flag("split_special_tokens").value_or(false))
    root.get("split_special_tokens").fail("is true, which is not supported", Remedy::plain_marks);
  config.prefix_token = token_name(root.get("prefix_token")).value_or(config.prefix_token);
  config.suffix_token = token_name(root.get("suffix_token")).value_or(config.suffix_token);
  config.middle_token = token_name(root.get("middle_token")).value_or(config.middle_token);
  config.end_token = token_name(root.get("eot_token")).value_or(config.end_token);
}

std::map<std::int32_t, AddedToken> read_decoder(const JsonValue& decoder) {
  std::map<std::int32_t, AddedToken> added;
  for (const auto& [key, json] : decoder.object().items()) {
    const JsonValue value = decoder.get(key);
    AddedToken token = read_added_token(value);
    token.id = id_from_key(key, value);
    added[token.id] = std::move(token);
  }
  return added;
}

/// \param named  names of special tokens
std::map<std::int32_t, AddedToken> read_added_file(const std::filesystem::path& file,
                                                   const std::vector<NamedToken>& named) {
  std::map<std::int32_t, AddedToken> added;
  const auto json = read_json_object(file);
  const JsonValue root(json, file.string());
  for (const auto& [name, id] : json.items()) {
    const JsonValue value = root.get(name);
    AddedToken token;
    token.id = checked_id(value, value.integer());
    token.text = name;
    token.special =
        std::any_of(named.begin(), named.end(), [&](const NamedToken& one) { return one.token.text == token.text; });
    token.normalized = !token.special;
    const auto [other, is_new] = added.emplace(token.id, token);
    if (!is_new) value.fail("has id " + std::to_string(token.id) + " as '" + other->second.text + "' has");
  }
  return added;
}

/// An optional JSON file, read twice: for access by key, and with its keys in order.
struct OptionalFile {
  OptionalFile(std::string of, nlohmann::json value)
      : name(std::move(of)), json(std::move(value)), ordered(nlohmann::ordered_json::parse(json_text(json))) {}
  explicit OptionalFile(const std::filesystem::path& path) : name(path.string()) {
    if (!std::filesystem::exists(path)) return;
    json = read_json_object(path);
    ordered = nlohmann::ordered_json::parse(read_text_file(path));
  }
  JsonValue root() const { return {json, name}; }
  bool is_there() const { return !json.is_null(); }

  std::string name;
  nlohmann::json json;
  nlohmann::ordered_json ordered;
};

}  // namespace

std::vector<AddedToken> all_added_tokens(const VocabularyPieces& pieces, const std::vector<AddedToken>& of_file,
                                         const TokenizerConfig& config) {
  AddedVocabulary all(pieces);
  for (const AddedToken& token : of_file) all.add(token, pieces.where);
  const auto is_named = [&](const AddedToken& token) {
    return std::any_of(config.named_tokens.begin(), config.named_tokens.end(),
                       [&](const NamedToken& named) { return named.by_key && named.token.text == token.text; });
  };
  const auto in_file = [&](const AddedToken& token) {
    return std::any_of(of_file.begin(), of_file.end(), [&](const AddedToken& other) { return other.id == token.id; });
  };
  for (AddedToken token : config.added_tokens) {
    const AddedToken* known = all.find(token.text);
    if (known != nullptr && same_but_for_id(*known, token)) continue;
    if (!config.has_decoder && in_file(token)) continue;  // added_tokens.json is older than tokenizer.json
    token.special = token.special || is_named(token);
    all.add(std::move(token), config.where);
  }
  for (const NamedToken& named : config.named_tokens) {
    if (all.find(named.token.text) != nullptr) continue;
    AddedToken token = named.token;
    token.is_optional = true;
    all.add(std::move(token), config.where);
  }
  return all.tokens();
}

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
  const auto file = is_gguf_file(directory) ? OptionalFile(directory.string(), gguf_tokenizer_config(directory))
                                            : OptionalFile(directory / "tokenizer_config.json");
  const auto added_file = directory / "added_tokens.json";
  const JsonValue root = file.root();
  read_class(root, directory, config);
  read_flags(root, config);
  NamedTokens named;
  if (file.is_there()) named.read(root, file.ordered);
  const JsonValue decoder = root.get("added_tokens_decoder");
  config.has_decoder = !decoder.is_null();
  config.file = config.where = file.name;
  std::map<std::int32_t, AddedToken> added;
  if (config.has_decoder) {
    added = read_decoder(decoder);
  } else {
    const OptionalFile map(directory / "special_tokens_map.json");
    if (map.is_there()) named.read(map.root(), map.ordered);
    if (std::filesystem::exists(added_file)) {
      added = read_added_file(added_file, named.tokens());
      config.where = added_file.string();
    }
  }
  for (auto& [id, token] : added) config.added_tokens.push_back(std::move(token));
  config.named_tokens = named.tokens();
  config.bos_token = named.name("bos_token");
  config.eos_token = named.name("eos_token");
  config.null_tokens = named.null_keys();
  return config;
}

bool makes_byte_level_step(const std::string& token_class) {
  return token_class == "GPT2Tokenizer" || token_class == "Qwen2Tokenizer" || token_class == "GPTNeoXTokenizer";
}

void refuse_prefix_space(const TokenizerConfig& config) {
  throw FormatError(config.file + ": add_prefix_space: is true, which is not supported for a byte-level vocabulary");
}

void add_to_vocabulary(const std::vector<AddedToken>& tokens, const std::string& where, TokenTexts& texts) {
  const std::int64_t limit = texts.size() + std::ssize(tokens) + kMaxGap;
  for (const AddedToken& token : tokens) {
    if (token.id < 0 || token.id >= limit) {
      throw FormatError(where + ": added token '" + token.text + "' has id " + std::to_string(token.id) +
                        ", but the vocabulary has " + std::to_string(texts.size()) + " ids");
    }
    texts.set(token.id, token.text, token.is_optional);
  }
}

}  // namespace fsdp
