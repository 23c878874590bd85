#include "lib/tokenizers/gguf/vocabulary_for_gguf.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/tokenizers/files/chat_templates.hpp"
#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/files/tokenizer_json.hpp"
#include "lib/tokenizers/gguf/gguf_pre_tokenizer.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"

namespace fsdp {
namespace {

constexpr float kAddedScore = -1000;     // of an added token
constexpr float kMissingScore = -10000;  // of an id without a token

constexpr const char* kGpt2End = "<|endoftext|>";

/// True for names that makers use for control tokens without saying that these are special.
bool looks_special(std::string_view text) {
  constexpr std::array<std::string_view, 4> known{"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
  const auto is_between = [&](std::string_view begin, std::string_view end) {
    return text.starts_with(begin) && text.ends_with(end);
  };
  return std::find(known.begin(), known.end(), text) != known.end() || is_between("<|", "|>") ||
         is_between("<｜", "｜>") || is_between("<unused", ">");
}

std::string plain_spaces(std::string text) {
  constexpr std::string_view sign = kSpaceSign;
  for (auto at = text.find(sign); at != std::string::npos; at = text.find(sign, at + 1))
    text.replace(at, sign.size(), " ");
  return text;
}

/// "Ġt he": spaces inside a piece are spelled in GPT-2's alphabet.
std::string merge_text(const std::string& left, const std::string& right) {
  const auto spelled = [](std::string text) {
    constexpr std::string_view space = "Ġ";
    for (auto at = text.find(' '); at != std::string::npos; at = text.find(' ', at + space.size()))
      text.replace(at, 1, space);
    return text;
  };
  return spelled(left) + ' ' + spelled(right);
}

/// A JSON file beside the vocabulary; null when there is none.
struct JsonFile {
  explicit JsonFile(const std::filesystem::path& path) : name(path.string()) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) json = read_json_object(path);
  }
  JsonValue root() const { return {json, name}; }

  std::string name;
  nlohmann::json json;
};

/// The text of a token given as text or as {"content": text}; empty for anything else.
std::string token_text(const JsonValue& value) {
  const auto content = value.get("content");
  if (value.is_string()) return value.string();
  return content.is_string() ? content.string() : "";
}

template <typename Value>
Value* find_named(std::vector<std::pair<std::string, Value>>& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.first == name; });
  return found == list.end() ? nullptr : &found->second;
}

/// The marks that go around a text, and their ids, from the files that name them.
class Marks {
 public:
  /// \param limit  ids from here on are left out
  Marks(const JsonValue& tokenizer, const JsonValue& beside, const nlohmann::json& config, std::int64_t limit)
      : beside_(beside), limit_(limit) {
    for (const auto& kind : kinds_) names_[kind] = token_text(beside.get(kind + "_token"));
    if (!tokenizer.is_null()) {
      if (names_["bos"].empty()) names_["bos"] = names_["cls"];
      if (names_["eos"].empty()) names_["eos"] = names_["sep"];
      read_post_processor(tokenizer.get("post_processor"));
    }
    if (!beside.is_null()) read_names(tokenizer.get("added_tokens"));
    for (const auto& kind : kinds_) {
      const auto id = config.is_object() ? config.value(kind + "_token_id", nlohmann::json()) : nlohmann::json();
      if (id.is_number_unsigned()) set_id(kind, id.get<std::uint64_t>());
    }
  }

  /// Gives the marks at the ends of a text that only have a name the id of the token that is called so.
  void find_names(const std::vector<std::string>& tokens) {
    for (const auto* kind : {"bos", "eos"})
      if (const auto found = std::find(tokens.begin(), tokens.end(), names_[kind]);
          !names_[kind].empty() && found != tokens.end())
        set_id(kind, static_cast<std::uint64_t>(found - tokens.begin()));
  }

  std::vector<std::pair<std::string, std::uint32_t>> ids;
  std::vector<std::pair<std::string, bool>> adds;

 private:
  void set_id(const std::string& kind, std::uint64_t id) {
    if (id < static_cast<std::uint64_t>(limit_) && find_named(ids, kind) == nullptr)
      ids.emplace_back(kind, static_cast<std::uint32_t>(id));
  }
  void set_add(const std::string& kind, bool value) {
    if (auto* known = find_named(adds, kind)) {
      *known = value;
    } else {
      adds.emplace_back(kind, value);
    }
  }

  void read_names(const JsonValue& added) {
    const auto tokens = added.is_null() ? std::vector<JsonValue>() : added.elements();
    for (const auto& kind : kinds_) {
      const auto add = beside_.get("add_" + kind + "_token");
      if (add.json().is_boolean() && find_named(adds, kind) == nullptr) set_add(kind, add.boolean());
      const auto& name = names_[kind];
      const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const JsonValue& token) {
        return !name.empty() && token.get("content").json() == name;
      });
      if (found != tokens.end() && found->get("id").json().is_number_unsigned())
        set_id(kind, found->get("id").json().get<std::uint64_t>());
    }
  }

  void read_post_processor(const JsonValue& post_processor) {
    if (post_processor.is_null()) return;
    const auto list = post_processor.get("processors");
    const auto steps = list.is_null() ? std::vector<JsonValue>{post_processor} : list.elements();
    for (const auto& step : steps) {
      const auto type = step.optional_string("type").value_or("");
      if (type == "TemplateProcessing") read_template(step);
      if (type != "ByteLevel") continue;
      for (const auto* kind : {"bos", "eos"})
        if (find_named(adds, kind) == nullptr) set_add(kind, false);
    }
  }

  static std::string special_of(const JsonValue& element) {
    return element.get("SpecialToken").optional_string("id").value_or("");
  }
  static std::string sequence_of(const JsonValue& element) {
    return element.get("Sequence").optional_string("id").value_or("");
  }

  void read_template(const JsonValue& step) {
    const auto list = [&](const char* key) {
      return step.get(key).is_null() ? std::vector<JsonValue>() : step.get(key).elements();
    };
    const auto single = list("single");
    std::string first, last;
    if (single.size() > 1) {
      first = special_of(single.front());
      last = special_of(single.back());
    }
    auto &bos = names_["bos"], &eos = names_["eos"], &cls = names_["cls"];
    if (!first.empty()) {
      const bool is_other = first != bos && first != cls;
      if (beside_.is_null() || (is_other && bos.empty())) bos = first;
      if (is_other && cls.empty()) cls = first;
      set_add("bos", first == bos || first == cls);
    }
    if (!last.empty()) {
      if (!beside_.is_null() && last != eos) {  // another mark ends texts: the usual one ends turns
        kinds_.emplace_back("eot");
        names_["eot"] = eos;
      }
      eos = last;
      set_add("eos", true);
    }
    read_pair(list("pair"), first, last);
  }

  /// Two texts: a mark between them is a separator.
  void read_pair(std::vector<JsonValue> pair, const std::string& first, const std::string& last) {
    if (pair.empty()) return;
    if (!first.empty() && special_of(pair.front()) == first) pair.erase(pair.begin());
    if (!last.empty() && !pair.empty() && special_of(pair.back()) == last) pair.pop_back();
    constexpr std::size_t two_texts = 2;
    if (pair.size() <= two_texts || sequence_of(pair.front()) != "A" || sequence_of(pair.back()) != "B") return;
    const auto is_separator = [&](const JsonValue& element) {
      const auto mark = special_of(element);
      return !mark.empty() && (mark == names_["sep"] || mark == names_["eos"]);
    };
    const bool adds_two = pair.size() == two_texts + 2 && is_separator(pair[2]);
    set_add("sep", (is_separator(pair[1]) && last.empty()) || adds_two);
  }

  const JsonValue& beside_;
  std::int64_t limit_;
  std::vector<std::string> kinds_{"bos", "eos", "unk", "sep", "pad", "cls", "mask"};
  std::map<std::string, std::string> names_;  ///< texts of the marks by kind
};

/// The templates of read_chat_templates(), else those of chat_template.json, by name.
std::vector<std::pair<std::string, std::string>> read_templates(const std::filesystem::path& directory) {
  auto found = read_chat_templates(directory);
  if (found.empty()) found = chat_templates_in(directory / "chat_template.json");
  std::vector<std::pair<std::string, std::string>> templates;
  for (auto& one : found) templates.emplace_back(std::move(one.name), std::move(one.text));
  return templates;
}

/// Whether the vocabulary of Llama's kind puts a space before a text.
bool prepends_space(const JsonValue& root) {
  const auto steps_of_kind = [&](const char* key, const char* list) {
    const auto step = root.get(key);
    const auto members = step.get(list);
    return members.is_null() ? std::vector<JsonValue>{step} : members.elements();
  };
  const auto prepends = [](const JsonValue& step) {
    const auto type = step.optional_string("type").value_or("");
    const auto scheme = step.optional_string("prepend_scheme");
    return type == "Prepend" ||
           (type == "Metaspace" && (scheme ? *scheme != "never" : step.boolean("add_prefix_space", true)));
  };
  return std::ranges::any_of(steps_of_kind("normalizer", "normalizers"), prepends) ||
         std::ranges::any_of(steps_of_kind("pre_tokenizer", "pretokenizers"), prepends);
}

/// Fills the ids of a vocabulary.
class TokenList {
 public:
  explicit TokenList(std::int64_t num_rows) {
    for (std::int64_t id = 0; id < num_rows; ++id) {
      tokens.push_back("[PAD" + std::to_string(id) + "]");
      scores.push_back(kMissingScore);
      types.push_back(static_cast<std::int32_t>(GgufTokenType::unused));
    }
  }
  /// Ids beyond the model are left out.
  void set(std::int64_t id, std::string text, float score, GgufTokenType type) {
    if (id < 0 || id >= std::ssize(tokens)) return;
    const auto place = to_index(id);
    tokens[place] = std::move(text);
    scores[place] = score;
    types[place] = static_cast<std::int32_t>(type);
  }
  void set_added(std::int64_t id, const std::string& text, bool is_special) {
    const bool is_control = is_special || looks_special(text);
    set(id, is_control ? text : plain_spaces(text), kAddedScore,
        is_control ? GgufTokenType::control : GgufTokenType::user_defined);
  }

  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
};

GgufTokenType type_of_piece(SentencePieceModel::Type type) {
  switch (type) {
    case SentencePieceModel::Type::unknown:
      return GgufTokenType::unknown;
    case SentencePieceModel::Type::control:
      return GgufTokenType::control;
    case SentencePieceModel::Type::unused:
      return GgufTokenType::unused;
    case SentencePieceModel::Type::byte:
      return GgufTokenType::byte;
    default:
      return GgufTokenType::normal;
  }
}

TokenList tokens_of_sentencepiece(const SentencePieceModel& model, const std::filesystem::path& directory,
                                  const JsonValue& beside, std::int64_t num_rows) {
  TokenList list(num_rows);
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    list.set(static_cast<std::int64_t>(id), piece.text, piece.score, type_of_piece(piece.type));
  }
  const JsonFile added(directory / "added_tokens.json");
  if (!added.json.is_null())
    for (const auto& [text, id] : added.json.items())
      if (id.is_number_integer()) list.set(id.get<std::int64_t>(), text, kAddedScore, GgufTokenType::user_defined);
  if (!beside.get("added_tokens_decoder").is_null())
    for (const auto& token : read_tokenizer_config(directory).added_tokens)
      list.set_added(token.id, token.text, token.special);
  return list;
}

/// The parts of a BPE vocabulary, spelled as in its files.
struct BpeParts {
  JsonVocabulary vocabulary;
  std::optional<std::string> pre;
  std::string where;  ///< for messages
};

/// \param merges  "left right" lines
BpeParts parts_of_texts(const nlohmann::json& vocab, std::string_view merges, std::string where) {
  BpeParts parts{.vocabulary = {}, .pre = "gpt-2", .where = std::move(where)};
  auto& pieces = parts.vocabulary.pieces;
  for (const auto& [piece, id] : vocab.items()) {
    const auto number = JsonValue(id, parts.where + ": '" + piece + "'").integer();
    if (number < 0 || number >= static_cast<std::int64_t>(vocab.size() + (1u << 16)))
      throw FormatError(parts.where + ": piece '" + piece + "' has id " + std::to_string(number));
    if (static_cast<std::size_t>(number) >= pieces.size()) pieces.resize(static_cast<std::size_t>(number) + 1);
    element(pieces, number) = piece;
  }
  while (!merges.empty()) {
    const auto end = std::min(merges.find('\n'), merges.size());
    auto line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto space = line.find(' ');
    if (space == std::string_view::npos || line.starts_with("#version")) continue;
    parts.vocabulary.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return parts;
}

BpeParts read_bpe(const std::filesystem::path& directory, const JsonValue& tokenizer) {
  if (directory.empty()) {
    const auto files = gpt2_tokenizer_files();
    auto parts = parts_of_texts(parse_json(files.at("vocab.json"), "GPT-2's vocabulary"), files.at("merges.txt"),
                                "GPT-2's vocabulary");
    parts.vocabulary.added.push_back({.id = gpt2_vocab_size - 1, .text = kGpt2End});
    return parts;
  }
  const auto config = read_tokenizer_config(directory);
  if (!tokenizer.is_null()) {
    BpeParts parts{.vocabulary = read_json_vocabulary(tokenizer, config), .pre = {}, .where = tokenizer.where()};
    parts.pre = gguf_pre_name(tokenizer.get("pre_tokenizer"), parts.vocabulary.ignore_merges);
    return parts;
  }
  const auto file = directory / "vocab.json";
  auto parts = parts_of_texts(read_json_object(file), read_text_file(directory / "merges.txt"), file.string());
  if (config.token_class == "Qwen2Tokenizer") parts.pre = "qwen2";
  parts.vocabulary.added = config.added_tokens;
  return parts;
}

/// Throws unless every id has a row. Ids that only a name in a config file refers to may have none.
void check_rows(const BpeParts& parts, std::int64_t num_rows) {
  auto last = std::ssize(parts.vocabulary.pieces) - 1;
  for (const auto& token : parts.vocabulary.added)
    if (!token.is_optional) last = std::max(last, std::int64_t{token.id});
  if (last >= num_rows)
    throw FormatError(parts.where + ": has ids up to " + std::to_string(last) + ", but the model has " +
                      std::to_string(num_rows) + " rows: is it the tokenizer of another model?");
}

/// Scores under which llama.cpp, which joins the pair with the highest score first, follows the merges.
std::map<std::string, float> scores_of_merges(const JsonVocabulary& vocabulary) {
  std::map<std::string, float> scores;
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i)
    scores.emplace(vocabulary.merges[i].first + vocabulary.merges[i].second, -static_cast<float>(i));
  return scores;
}

TokenList tokens_of_bpe(const JsonVocabulary& vocabulary, std::int64_t num_rows, const std::string& unknown) {
  TokenList list(num_rows);
  const auto scores = vocabulary.byte_fallback ? scores_of_merges(vocabulary) : std::map<std::string, float>();
  const auto type_of = [&](const std::string& piece) {
    constexpr std::size_t byte_length = 6;  // <0x0A>
    if (!vocabulary.byte_fallback) return GgufTokenType::normal;
    if (piece == unknown) return GgufTokenType::unknown;
    const bool is_byte = piece.size() == byte_length && piece.starts_with("<0x") && piece.ends_with('>');
    return is_byte ? GgufTokenType::byte : GgufTokenType::normal;
  };
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const auto& piece = vocabulary.pieces[id];
    if (piece.empty()) continue;
    const auto score = scores.find(piece);
    list.set(static_cast<std::int64_t>(id), piece, score == scores.end() ? kAddedScore : score->second, type_of(piece));
  }
  for (const auto& token : vocabulary.added)
    if (!vocabulary.byte_fallback || token.text != unknown) list.set_added(token.id, token.text, token.special);
  return list;
}

void take(TokenList list, GgufVocabulary& vocabulary) {
  vocabulary.tokens = std::move(list.tokens);
  vocabulary.types = std::move(list.types);
  if (vocabulary.model == "llama") vocabulary.scores = std::move(list.scores);
}

/// A token that ends no text, for a vocabulary of GPT-2's kind without an end mark: an id that has no token, else a
/// byte that UTF-8 never has, under its character in GPT-2's alphabet.
std::optional<std::uint32_t> token_of_no_text(const GgufVocabulary& vocabulary) {
  constexpr auto unused = static_cast<std::int32_t>(GgufTokenType::unused);
  const auto place = [](const auto& list, const auto& found) {
    return static_cast<std::uint32_t>(found - list.begin());
  };
  if (const auto found = std::ranges::find(vocabulary.types, unused); found != vocabulary.types.end())
    return place(vocabulary.types, found);
  for (const char* byte : {"ÿ", "þ", "ý", "ü", "û", "ú", "ù", "ø", "÷", "ö", "õ", "Á", "À"})  // FF to F5, C1, C0
    if (const auto found = std::ranges::find(vocabulary.tokens, byte); found != vocabulary.tokens.end())
      return place(vocabulary.tokens, found);
  return std::nullopt;
}

/// Gives a vocabulary of GPT-2's kind without an end mark one: GPT-2's, else a token that ends no text.
void replace_missing_end(GgufVocabulary& vocabulary) {
  const auto& tokens = vocabulary.tokens;
  if (const auto found = std::ranges::find(tokens, kGpt2End); found != tokens.end()) {
    vocabulary.ids.emplace_back("eos", static_cast<std::uint32_t>(found - tokens.begin()));
  } else if (const auto id = token_of_no_text(vocabulary)) {
    vocabulary.ids.emplace_back("eos", *id);
    vocabulary.remark =
        "the tokenizer names no end of a text, so llama.cpp generates as many tokens as it is asked for: token " +
        std::to_string(*id) + ", which no text has, stands for the end";
  } else {
    vocabulary.remark = "the tokenizer names no end of a text, so llama.cpp ends texts at token 11";
  }
}

/// Keeps llama.cpp from its own marks for a vocabulary of GPT-2's kind that has none: token 11, often a comma, would
/// begin texts and end them, and no key says that there is no such mark. Source: llama.cpp, llama-vocab.cpp
/// (special_eos_id).
void replace_missing_marks(GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2") return;
  if (find_named(vocabulary.ids, "eos") == nullptr) replace_missing_end(vocabulary);
  if (find_named(vocabulary.ids, "bos") != nullptr) return;
  auto* adds = find_named(vocabulary.adds, "bos");
  if (adds != nullptr) {
    *adds = false;
  } else {
    vocabulary.adds.emplace_back("bos", false);
  }
}

/// Reads tokenizer.model; nothing when there is none or it is no SentencePiece model of a supported kind and
/// tokenizer.json can take its place.
std::optional<SentencePieceModel> read_sentencepiece(const std::filesystem::path& directory, bool has_other) {
  const auto file = directory / "tokenizer.model";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return {};
  try {
    return parse_sentencepiece_model(read_text_file(file), file.string());
  } catch (const FormatError&) {
    if (!has_other) throw;
    return {};
  }
}

}  // namespace

GgufVocabulary make_gguf_vocabulary(const std::filesystem::path& directory, const nlohmann::json& config,
                                    const GgufVocabularyOptions& options) {
  const bool is_built_in = directory.empty();
  const JsonFile tokenizer(is_built_in ? "" : directory / "tokenizer.json"),
      beside(is_built_in ? "" : directory / "tokenizer_config.json");
  GgufVocabulary vocabulary;
  const auto root = tokenizer.root(), config_beside = beside.root();
  std::optional<SentencePieceModel> model;
  if (options.takes_sentencepiece && !is_built_in) model = read_sentencepiece(directory, !root.is_null());
  auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (model) {
    vocabulary.model = "llama";
    vocabulary.pre = "default";
    vocabulary.prepends_space = model->normalizer.dummy_prefix;
    take(tokens_of_sentencepiece(*model, directory, config_beside, options.num_rows), vocabulary);
    limit = options.num_rows;
  } else {
    const auto parts = read_bpe(directory, root);
    check_rows(parts, options.num_rows);
    const bool is_llama = parts.vocabulary.byte_fallback;
    vocabulary.model = is_llama ? "llama" : "gpt2";
    vocabulary.pre = !options.pre.empty() ? options.pre : is_llama ? "default" : parts.pre.value_or("");
    if (vocabulary.pre.empty())
      throw RequestError(
          parts.where +
              ": llama.cpp splits texts into words by a pre-tokenizer of its own, and none of those known "
              "here splits like this file",
          Remedy::name_pre_tokenizer);
    const auto unknown = root.get("model").get("unk_token");
    take(tokens_of_bpe(parts.vocabulary, options.num_rows,
                       token_text(unknown.is_null() ? config_beside.get("unk_token") : unknown)),
         vocabulary);
    vocabulary.prepends_space = is_llama && prepends_space(root);
    if (is_llama && !vocabulary.prepends_space) vocabulary.space_prefix = false;
    if (!is_llama)
      for (const auto& [left, right] : parts.vocabulary.merges) vocabulary.merges.push_back(merge_text(left, right));
  }
  Marks marks(root, config_beside, config, limit);
  // Without its id, llama.cpp takes token 11 of a vocabulary of GPT-2's kind for the end of a text: a comma.
  if (root.is_null() && !model) marks.find_names(vocabulary.tokens);
  vocabulary.ids = std::move(marks.ids);
  for (const auto* kind : {"bos", "eos"})
    if (is_built_in && find_named(vocabulary.ids, kind) == nullptr)
      vocabulary.ids.emplace_back(kind, gpt2_vocab_size - 1);
  vocabulary.adds = std::move(marks.adds);
  replace_missing_marks(vocabulary);
  if (const auto prefix = config_beside.get("add_prefix_space"); prefix.json().is_boolean() && !vocabulary.space_prefix)
    vocabulary.space_prefix = prefix.boolean();
  if (model && !vocabulary.prepends_space && !vocabulary.space_prefix) vocabulary.space_prefix = false;
  if (!is_built_in) vocabulary.templates = read_templates(directory);
  return vocabulary;
}

}  // namespace fsdp
