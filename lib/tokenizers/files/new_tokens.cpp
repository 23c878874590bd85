#include "lib/tokenizers/files/new_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/gguf/gguf_tokenizer.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostTokens = 1 << 16, kLongest_bytes = 256;

AddedToken token_of(const nlohmann::json& entry, const std::string& where) {
  AddedToken token;
  token.special = false;
  if (entry.is_string()) {
    token.text = entry.get<std::string>();
  } else if (entry.is_object() && entry.contains("content") && entry["content"].is_string()) {
    token.text = entry["content"].get<std::string>();
    token.special = entry.value("special", false);
    token.single_word = entry.value("single_word", false);
    token.lstrip = entry.value("lstrip", false);
    token.rstrip = entry.value("rstrip", false);
  } else {
    throw FormatError(where + ": has an entry that is neither a name nor an object with content");
  }
  token.normalized = entry.is_object() ? entry.value("normalized", !token.special) : !token.special;
  return token;
}

void check(const std::vector<AddedToken>& tokens, const std::string& where) {
  if (tokens.empty()) throw FormatError(where + ": names no token");
  if (tokens.size() > kMostTokens)
    throw FormatError(fmt::format("{}: names {} tokens, at most {} can be added", where, tokens.size(), kMostTokens));
  std::set<std::string> names;
  for (const auto& token : tokens) {
    if (token.text.empty() || token.text.size() > kLongest_bytes || !is_utf8(token.text))
      throw FormatError(fmt::format("{}: token {} is empty, longer than {} bytes or no UTF-8", where, names.size() + 1,
                                    kLongest_bytes));
    if (!names.insert(token.text).second) throw FormatError(fmt::format("{}: names '{}' twice", where, token.text));
  }
}

Json json_of(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.text},  {"single_word", token.single_word},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip}, {"normalized", token.normalized},
          {"special", token.special}};
}

/// The names and contents of a tokenizer's files.
std::map<std::string, std::string> files_of(const std::string& name) {
  if (name == kBuiltInTokenizer) return gpt2_tokenizer_files();
  if (is_gguf_file(name)) return gguf_tokenizer_files(name);
  constexpr std::uint64_t kLimit_bytes = std::uint64_t{256} << 20;
  std::map<std::string, std::string> files;
  for (const auto& file : tokenizer_files(name)) {
    if (file.filename() != "config.json") files[file.filename().string()] = read_text_file(file, kLimit_bytes);
  }
  return files;
}

/// Calls change(json) on a file that is there, or with `make` on a new one, and writes it back.
template <typename Change>
void change_json(std::map<std::string, std::string>& files, const std::string& name, bool make, const Change& change) {
  const auto found = files.find(name);
  if (found == files.end() && !make) return;
  auto json = found == files.end() ? Json::object() : Json::parse(found->second, nullptr, false);
  if (!json.is_object()) throw FormatError(name + " of the tokenizer is no JSON object");
  change(json);
  files[name] = json.dump(2) + "\n";
}

/// The ids of pieces in a tokenizer.json: names that are pieces get no new id.
std::map<std::string, std::int32_t> pieces_of(const std::map<std::string, std::string>& files,
                                              const std::vector<AddedToken>& tokens) {
  std::map<std::string, std::int32_t> pieces;
  const auto found = files.find("tokenizer.json");
  const auto other = files.find("vocab.json");
  const auto look = [&](const nlohmann::json& vocabulary) {
    for (const auto& token : tokens) {
      if (const auto id = vocabulary.find(token.text); id != vocabulary.end() && id->is_number_integer())
        pieces[token.text] = id->get<std::int32_t>();
    }
  };
  const nlohmann::json::json_pointer place("/model/vocab");
  if (found != files.end()) {
    const auto json = parse_json_or_discard(found->second, "tokenizer.json");
    if (json.is_object() && json.contains(place) && json[place].is_object()) look(json[place]);
  } else if (other != files.end()) {
    const auto json = parse_json_or_discard(other->second, "vocab.json");
    if (json.is_object()) look(json);
  }
  return pieces;
}

void add_special_names(Json& json, const std::vector<AddedToken>& tokens) {
  const auto is_special = [](const auto& token) { return token.special; };
  if (std::none_of(tokens.begin(), tokens.end(), is_special)) return;
  // transformers 5 writes extra_special_tokens and reads both.
  const auto* list = json.contains("extra_special_tokens") && json["extra_special_tokens"].is_array()
                         ? "extra_special_tokens"
                         : "additional_special_tokens";
  auto& names = json[list];
  if (!names.is_array()) names = Json::array();
  for (const auto& token : tokens) {
    if (token.special) names.push_back(token.text);
  }
}

}  // namespace

std::vector<AddedToken> read_new_tokens(const std::filesystem::path& file) {
  const auto where = file.string();
  const auto text = read_text_file(file, std::uint64_t{16} << 20);
  std::vector<AddedToken> tokens;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[' && file.extension() == ".json") {
    const auto json = parse_json_or_discard(text, where);
    if (!json.is_array()) throw FormatError(where + ": is no JSON list of tokens");
    try {
      for (const auto& entry : json) tokens.push_back(token_of(entry, where));
    } catch (const nlohmann::json::exception& error) {
      throw FormatError(where + ": " + error.what());
    }
  } else {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) tokens.push_back(token_of(line, where));
    }
  }
  check(tokens, where);
  return tokens;
}

GrownTokenizer grow_tokenizer(const std::string& name, const std::vector<AddedToken>& tokens) {
  const auto before = open_tokenizer(name);
  GrownTokenizer grown{files_of(name), {}};
  const auto pieces = pieces_of(grown.files, tokens);
  auto next = before->vocab_size();
  for (auto token : tokens) {
    if (before->named_id(token.text)) continue;
    const auto piece = pieces.find(token.text);
    token.id = piece != pieces.end() ? piece->second : static_cast<std::int32_t>(next++);
    grown.added.push_back(std::move(token));
  }
  const auto& added = grown.added;
  if (added.empty()) return grown;
  const bool has_json = grown.files.contains("tokenizer.json");
  if (has_json) {
    change_json(grown.files, "tokenizer.json", false, [&](Json& json) {
      for (const auto& token : added) json["added_tokens"].push_back(json_of(token));
    });
  }
  bool has_decoder = false;
  change_json(grown.files, "tokenizer_config.json", true, [&](Json& json) {
    has_decoder = json.contains("added_tokens_decoder") && json["added_tokens_decoder"].is_object();
    for (const auto& token : added) {
      if (!has_decoder) break;
      auto entry = json_of(token);
      entry.erase("id");
      json["added_tokens_decoder"][std::to_string(token.id)] = entry;
    }
    add_special_names(json, added);
  });
  if (grown.files.contains("special_tokens_map.json"))
    change_json(grown.files, "special_tokens_map.json", false, [&](Json& json) { add_special_names(json, added); });
  if (!has_json && !has_decoder)
    change_json(grown.files, "added_tokens.json", true, [&](Json& json) {
      for (const auto& token : added) json[token.text] = token.id;
    });
  return grown;
}

}  // namespace fsdp
