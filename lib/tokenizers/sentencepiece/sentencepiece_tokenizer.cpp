#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/bpe/byte_fallback_bpe.hpp"
#include "lib/tokenizers/bpe/byte_level_tokenizer.hpp"
#include "lib/tokenizers/bpe/metaspace_tokenizer.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/files/tokenizer_json.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_merges.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"
#include "lib/tokenizers/vocabulary/word_cache.hpp"

namespace fsdp {

namespace {

using Type = SentencePieceModel::Type;

LlamaPiece llama_piece(const SentencePieceModel::Piece& piece, const SentencePieceModel& model) {
  switch (piece.type) {
    case Type::control:
      return {piece.text, LlamaPiece::Kind::control};
    case Type::byte:
      return {piece.text, LlamaPiece::Kind::byte};
    case Type::unknown:
      return {model.unknown_text, LlamaPiece::Kind::literal};
    default:
      return {piece.text, LlamaPiece::Kind::text};
  }
}

/// Lists every way to make a piece of two others, sorted by the id of the piece, then by the length of the left part.
std::vector<MergePair> merges_of(const std::vector<std::string>& texts, const PieceIds& ids) {
  std::vector<MergePair> merges;
  for (const auto& text : texts) {
    for (std::size_t at = utf8_character_length(text); at < text.size();
         at += utf8_character_length(std::string_view(text).substr(at))) {
      MergePair pair{text.substr(0, at), text.substr(at)};
      const bool are_pieces = ids.find(pair.left) != PieceIds::kNoId && ids.find(pair.right) != PieceIds::kNoId;
      if (are_pieces) merges.push_back(std::move(pair));
    }
  }
  return merges;
}

constexpr std::uint64_t kMaxModelBytes = 64u << 20;  // Llama's has 0.5 MB
constexpr std::size_t kWordBytes = 8;

void load(sentencepiece::SentencePieceProcessor& processor, const std::string& serialized, const std::string& file) {
  const auto status = processor.LoadFromSerializedProto(serialized);
  if (!status.ok()) throw FormatError(file + ": SentencePiece refuses the model: " + status.ToString());
}

/// The parts of a model that the tokenizer uses besides its pieces.
struct EncodingParts {
  SentencePieceNormalizer normalizer;
  AddedTokenSearch added_tokens;  ///< tokens that are found in texts
  AddedTokenSearch names;         ///< tokens that encode_marked() finds, special ones included
  bool may_cut;                   ///< a text may be encoded in parts that begin before spaces
  std::array<bool, 128> alone;    ///< ASCII characters that no piece holds beside others: they merge with nothing
};

class SentencePieceTokenizer final : public MetaspaceTokenizer {
 public:
  SentencePieceTokenizer(const LlamaParts& llama, EncodingParts parts, const SentencePieceModel& model)
      : MetaspaceTokenizer(llama, std::move(parts.names)),
        merges_(SentencePieceMerges::of(model, byte_ids())),
        normalizer_(std::move(parts.normalizer)),
        added_tokens_(std::move(parts.added_tokens)),
        may_cut_(parts.may_cut),
        alone_(parts.alone) {
    load(processor_, model.serialized, llama.where);  // also to have it checked
  }

 protected:
  void append(std::string_view text, bool with_prefix, StopWatch& watch,
              std::vector<std::int32_t>& ids) const override {
    if (added_tokens_.empty()) return append_normalized(normalizer_.normalized_text(text, with_prefix), watch, ids);
    for (const TextSegment& segment : added_tokens_.raw().split(text)) {
      if (segment.id != TextSegment::kPlain) {
        ids.push_back(segment.id);
        continue;
      }
      const bool prefix = segment.text.data() == text.data() ? with_prefix : dummy_prefix();
      append_normalized(normalizer_.normalized_text(segment.text, prefix), watch, ids);
    }
  }

  /// Encodes each part, a turn of a conversation, as a text of its own.
  void append_aligned(std::string_view part, std::size_t begin, std::span<const TextRange>,
                      AlignedIds& out) const override {
    const auto normalized = normalizer_.normalize(part, dummy_prefix());
    const std::size_t first = out.parts.size();
    const StopTest never;
    StopWatch watch(never);
    append_normalized(normalized.text, watch, out.ids);
    align(normalized.text, 0, out);
    to_sources(normalized, begin, first, out.parts);
  }

 private:
  void append_normalized(std::string_view text, StopWatch& watch, std::vector<std::int32_t>& ids) const {
    std::vector<std::int32_t> part_ids;
    const WordCaches::Lease cache(caches_);
    while (!text.empty()) {
      const std::size_t valid = utf8_valid_prefix(text);
      std::string_view rest = text.substr(0, valid);
      while (!rest.empty()) {
        const std::string_view part = rest.substr(0, part_length(rest));
        rest.remove_prefix(part.size());
        watch.step(1 + part.size() / kWordBytes);
        const bool is_word = may_cut_ && part.size() <= WordCache::kMostBytes;
        if (const auto known = is_word ? cache->find(part) : std::span<const std::int32_t>(); !known.empty()) {
          ids.insert(ids.end(), known.begin(), known.end());
          continue;
        }
        part_ids.clear();
        encode_part(part, part_ids);
        ids.insert(ids.end(), part_ids.begin(), part_ids.end());
        if (is_word) cache->keep(part, part_ids);
      }
      text.remove_prefix(valid);
      // The library would replace these invalid bytes by U+FFFD.
      while (!text.empty() && utf8_character_length(text) == 0) {
        ids.push_back(byte_ids()[static_cast<std::uint8_t>(text.front())]);
        text.remove_prefix(1);
      }
    }
  }

  void encode_part(std::string_view part, std::vector<std::int32_t>& ids) const {
    if (merges_) return merges_->encode(part, ids);
    const auto status = processor_.Encode(absl::string_view(part.data(), part.size()), &ids);
    if (!status.ok()) throw RuntimeFailure("SentencePiece cannot encode a text: " + status.ToString());
  }

  /// Number of bytes of `text` to encode at once: up to a space that follows another character, or a character that
  /// stands alone. Nothing merges across these places, so the ids are those of the whole text.
  std::size_t part_length(std::string_view text) const {
    if (!may_cut_) return text.size();
    const auto is_alone = [&](char c) { return static_cast<unsigned char>(c) < 128 && element(alone_, c); };
    if (is_alone(text.front())) return 1;
    const char sign = kSpaceSign.front();
    bool after_space = text.front() == ' ' || text.starts_with(kSpaceSign);
    for (std::size_t at = after_space && text.front() == sign ? kSpaceSign.size() : 1; at < text.size();) {
      if (is_alone(text[at])) return at;
      const bool is_sign = text[at] == sign && text.substr(at).starts_with(kSpaceSign);
      const bool is_space = is_sign || text[at] == ' ';
      if (is_space && !after_space) return at;
      after_space = is_space;
      at += is_sign ? kSpaceSign.size() : 1;
    }
    return text.size();
  }

  sentencepiece::SentencePieceProcessor processor_;  ///< takes normalized texts
  std::optional<SentencePieceMerges> merges_;        ///< in place of the processor, unless the model is unusual
  SentencePieceNormalizer normalizer_;
  AddedTokenSearch added_tokens_;
  bool may_cut_;
  std::array<bool, 128> alone_;
  mutable WordCaches caches_;
};

/// Finds the ASCII characters that no piece holds beside others.
std::array<bool, 128> characters_alone(const SentencePieceModel& model) {
  std::array<bool, 128> alone;
  alone.fill(true);
  for (const auto& piece : model.pieces) {
    const bool merges = piece.type == Type::normal || piece.type == Type::user_defined || piece.type == Type::unused;
    if (!merges || piece.text.size() == 1) continue;
    for (const char c : piece.text) {
      if (static_cast<unsigned char>(c) < 128) element(alone, c) = false;
    }
  }
  return alone;
}

/// Returns the added tokens, to be found in raw text, and the marks of the model itself.
std::vector<AddedToken> named_tokens(const SentencePieceModel& model, const std::vector<AddedToken>& added) {
  auto tokens = added;
  for (AddedToken& token : tokens) token.normalized = false;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type != SentencePieceModel::Type::control && piece.type != SentencePieceModel::Type::unknown) continue;
    const auto has = [&](const AddedToken& token) { return token.text == piece.text; };
    if (std::none_of(tokens.begin(), tokens.end(), has))
      tokens.push_back({.id = static_cast<std::int32_t>(id), .text = piece.text});
  }
  return tokens;
}

EncodingParts encoding_parts(const SentencePieceModel& model, const std::vector<AddedToken>& added, bool may_cut,
                             const std::string& file) {
  std::vector<std::string> symbols;
  for (const auto& piece : model.pieces) {
    if (piece.type == SentencePieceModel::Type::user_defined) symbols.push_back(piece.text);
  }
  const auto names = named_tokens(model, added);
  return {SentencePieceNormalizer(model.normalizer, symbols, file), AddedTokenSearch(names),
          AddedTokenSearch(names, SpecialNames::tokens), may_cut, characters_alone(model)};
}

std::vector<AddedToken> added_tokens_of(const SentencePieceModel& model, const TokenizerConfig& config,
                                        const std::string& where) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    ids.emplace(model.pieces[id].text, static_cast<std::int32_t>(id));
  const auto find = [&](const std::string& name) {
    const auto found = ids.find(name);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  return all_added_tokens({where, std::ssize(model.pieces), find, true}, {}, config);
}

/// Returns the pieces of a model, without added tokens.
std::vector<LlamaPiece> llama_pieces(const SentencePieceModel& model) {
  std::vector<LlamaPiece> pieces;
  for (const auto& piece : model.pieces) pieces.push_back(llama_piece(piece, model));
  return pieces;
}

/// Collects pieces, added tokens and marks, for both ways of encoding. \param where  the file of the model
LlamaParts llama_parts(const SentencePieceModel& model, const TokenizerConfig& config,
                       const std::vector<AddedToken>& added, const std::string& where) {
  LlamaParts parts;
  parts.where = where;
  parts.pieces = llama_pieces(model);
  add_tokens(added, config.where, parts.pieces);
  if (!config.is_null("bos_token")) parts.bos = find_piece(parts.pieces, config.bos_token.value_or(model.bos_text));
  if (!config.is_null("eos_token")) parts.eos = find_piece(parts.pieces, config.eos_token.value_or(model.eos_text));
  if (config.add_bos.value_or(true) && parts.bos) parts.marks.before.push_back(*parts.bos);
  if (config.add_eos.value_or(false) && parts.eos) parts.marks.after.push_back(*parts.eos);
  parts.infill = find_infill_ids(parts.pieces, config);
  return parts;
}

/// True when transformers 5.23 encodes by LlamaTokenizer: the files name that class, and either set `legacy` or add
/// tokens to the model's. Otherwise texts are encoded by the sentencepiece library, as the model alone says.
bool is_made_by_llama_class(const SentencePieceModel& model, const TokenizerConfig& config,
                            const std::vector<AddedToken>& added) {
  const auto is_new = [&](const AddedToken& token) { return to_index(token.id) >= model.pieces.size(); };
  return config.hub_class == "LlamaTokenizer" && (config.legacy || std::any_of(added.begin(), added.end(), is_new));
}

/// A model as byte-pair merges over characters, which is what tokenizer.json can say.
struct ModelAsMerges {
  std::vector<MergePair> merges;  ///< those to apply first come first
  SpacePrefix prefix = SpacePrefix::none;
  std::vector<AddedToken> added;  ///< with the model's own marks and user-defined pieces
};

/// Adds the marks and the user-defined pieces of the model itself.
std::vector<AddedToken> with_own_tokens(const SentencePieceModel& model, std::vector<AddedToken> added) {
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, type, score] = model.pieces[id];
    const auto has = [&](const AddedToken& token) { return token.id == static_cast<std::int32_t>(id); };
    if (type != Type::control && type != Type::user_defined && type != Type::unknown) continue;
    if (std::any_of(added.begin(), added.end(), has)) continue;
    added.push_back({.id = static_cast<std::int32_t>(id), .text = text, .special = type != Type::user_defined});
  }
  return added;
}

std::vector<std::string> texts_of(const SentencePieceModel& model) {
  std::vector<std::string> texts;
  for (const auto& piece : model.pieces) texts.push_back(piece.text);
  return texts;
}

/// LlamaTokenizer of transformers 5.23 makes this of a tokenizer.model: byte-pair merges that follow from the pieces,
/// and Metaspace in place of the model's own normalizer. With `legacy` a space is put before every part of a text
/// between added tokens, without it only before the text, unless a space is there already.
///
/// Source: models/llama/tokenization_llama.py, SentencePieceExtractor and generate_merges() of transformers 5.23.
ModelAsMerges merges_of_llama_class(const SentencePieceModel& model, const TokenizerConfig& config,
                                    const std::vector<AddedToken>& added) {
  ModelAsMerges made;
  const auto texts = texts_of(model);
  made.merges = merges_of(texts, PieceIds(texts));
  if (config.add_prefix_space.value_or(true))
    made.prefix = config.legacy.value_or(false) ? SpacePrefix::metaspace_always : SpacePrefix::metaspace_first;
  made.added = with_own_tokens(model, added);
  return made;
}

/// \param text  valid UTF-8
std::size_t num_characters(std::string_view text) {
  std::size_t count = 0;
  for (; !text.empty(); text.remove_prefix(utf8_character_length(text))) ++count;
  return count;
}

/// The merges with which byte-pair encoding joins the pairs that SentencePiece joins: of two pairs first that whose sum
/// has the higher score. Marks, bytes and user-defined pieces are joined of nothing.
///
/// Source: src/bpe_model.cc of sentencepiece; the order of equal scores as in convert_slow_tokenizer.py,
/// SentencePieceExtractor, of transformers 4.57.
ModelAsMerges merges_by_score(const SentencePieceModel& model, const TokenizerConfig& config,
                              const std::vector<AddedToken>& added) {
  struct Scored {
    MergePair pair;
    float score;
    std::size_t left, right;  ///< characters
  };
  std::vector<std::string> texts;
  for (const auto& piece : model.pieces) texts.push_back(piece.type == Type::normal ? piece.text : "");
  const PieceIds ids(texts);
  std::vector<Scored> scored;
  for (auto& pair : merges_of(texts, ids)) {
    const auto sum = to_index(ids.find(pair.left + pair.right));
    const auto left = num_characters(pair.left), right = num_characters(pair.right);
    scored.push_back({std::move(pair), model.pieces[sum].score, left, right});
  }
  std::stable_sort(scored.begin(), scored.end(), [](const Scored& a, const Scored& b) {
    return std::tuple(a.score, a.left, a.right) > std::tuple(b.score, b.left, b.right);
  });
  ModelAsMerges made;
  for (auto& one : scored) made.merges.push_back(std::move(one.pair));
  const bool prefix = model.normalizer.dummy_prefix && config.add_prefix_space.value_or(true);
  made.prefix = prefix ? SpacePrefix::prepend : SpacePrefix::none;
  made.added = with_own_tokens(model, added);
  return made;
}

/// Why tokenizer.json cannot say what the library does with the model; "" when it can.
std::string reason_against_merges(const SentencePieceModel& model) {
  const auto& normalizer = model.normalizer;
  if (!normalizer.character_map.empty()) return "its normalizer maps characters";
  if (normalizer.remove_extra_spaces) return "its normalizer removes spaces";
  if (!normalizer.escape_spaces) return "its normalizer keeps spaces";
  const auto is_unused = [](const auto& piece) { return piece.type == Type::unused; };
  return std::ranges::any_of(model.pieces, is_unused) ? "it has unused pieces" : "";
}

std::unique_ptr<Tokenizer> make_of_merges(const SentencePieceModel& model, ModelAsMerges made, LlamaParts parts) {
  ByteFallbackParts bpe;
  bpe.merges = merge_table(made.merges, PieceIds(texts_of(model)), parts.where);
  bpe.llama = std::move(parts);
  bpe.prefix = made.prefix;
  bpe.llama.dummy_prefix = bpe.prefix != SpacePrefix::none;
  bpe.llama.strips_spaces = false;
  bpe.added_tokens = std::move(made.added);
  return std::make_unique<ByteFallbackBpe>(std::move(bpe));
}

using Json = nlohmann::ordered_json;

/// The normalizer and the pre-tokenizer: where spaces are put.
void set_spaces(SpacePrefix prefix, Json& root) {
  const bool is_metaspace = prefix == SpacePrefix::metaspace_always || prefix == SpacePrefix::metaspace_first;
  auto steps = Json::array();
  if (prefix == SpacePrefix::prepend) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceSign}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceSign}});
  root["normalizer"] = is_metaspace ? Json() : Json{{"type", "Sequence"}, {"normalizers", steps}};
  const char* scheme = prefix == SpacePrefix::metaspace_always ? "always" : "first";
  const Json metaspace{
      {"type", "Metaspace"}, {"replacement", kSpaceSign}, {"prepend_scheme", scheme}, {"split", false}};
  root["pre_tokenizer"] = is_metaspace ? metaspace : Json();
}

/// The post-processor, which adds the marks; null without marks.
Json marks_step(const LlamaParts& parts) {
  if (parts.marks.before.empty() && parts.marks.after.empty()) return {};
  auto single = Json::array(), pair = Json::array();
  auto specials = Json::object();
  const auto add = [&](const std::vector<std::int32_t>& ids, Json& steps, int type) {
    for (const auto id : ids) {
      const auto& name = element(parts.pieces, id).text;
      steps.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
      specials[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
    }
  };
  const auto add_text = [&](const char* name, Json& steps, int type) {
    add(parts.marks.before, steps, type);
    steps.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    add(parts.marks.after, steps, type);
  };
  add_text("A", single, 0);
  add_text("A", pair, 0);
  add_text("B", pair, 1);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

/// tokenizer.json of Hugging Face's tokenizers. Merges are texts, which all its versions read.
Json tokenizer_json(const SentencePieceModel& model, const ModelAsMerges& made, const LlamaParts& parts) {
  Json root{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", Json::array()}};
  auto sorted = made.added;
  std::ranges::sort(sorted, {}, &AddedToken::id);
  for (const auto& token : sorted) {
    if (token.is_optional) continue;  // transformers adds those that tokenizer_config.json names
    root["added_tokens"].push_back({{"id", token.id},
                                    {"content", token.text},
                                    {"single_word", token.single_word},
                                    {"lstrip", token.lstrip},
                                    {"rstrip", token.rstrip},
                                    {"normalized", token.normalized},
                                    {"special", token.special}});
  }
  set_spaces(made.prefix, root);
  root["post_processor"] = marks_step(parts);
  auto decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceSign}}}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}}});
  if (made.prefix != SpacePrefix::none)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  Json vocab = Json::object(), merges = Json::array(), unknown;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    vocab.get_ref<Json::object_t&>().emplace_back(model.pieces[id].text, id);  // not [], which searches
    if (model.pieces[id].type == Type::unknown) unknown = model.pieces[id].text;
  }
  for (const auto& [left, right] : made.merges) merges.push_back(left + " " + right);
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", unknown},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", true},
                   {"byte_fallback", true},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocab)},
                   {"merges", std::move(merges)}};
  return root;
}

/// Texts that hold every piece, one after the other as in the vocabulary.
std::vector<std::string> texts_of_all_pieces(const SentencePieceModel& model) {
  constexpr std::size_t pieces_per_text = 50;
  std::vector<std::string> texts;
  std::size_t count = 0;
  for (const auto& piece : model.pieces) {
    if (piece.type != Type::normal) continue;
    if (count++ % pieces_per_text == 0) texts.emplace_back();
    auto text = piece.text;
    for (auto at = text.find(kSpaceSign); at != text.npos; at = text.find(kSpaceSign, at))
      text.replace(at, kSpaceSign.size(), " ");
    texts.back() += text;
  }
  return texts;
}

/// tokenizer_config.json with the class that takes tokenizer.json as it is: the Llama classes of transformers 5 make
/// normalizer and marks themselves. The marks that those classes know by themselves are named.
std::string fast_config(const std::filesystem::path& directory, const TokenizerConfig& read,
                        const std::map<std::string, std::string>& marks) {
  const auto is_named = [&](const std::string& key) {
    return read.is_null(key) || std::ranges::find(read.named_tokens, key, &NamedToken::key) != read.named_tokens.end();
  };
  const auto file = directory / "tokenizer_config.json";
  std::error_code ignored;
  auto config = Json::object();
  if (std::filesystem::exists(file, ignored)) config = Json::parse(read_text_file(file));
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  for (const auto& [key, text] : marks)
    if (!is_named(key)) config[key] = text;
  if (!config.contains("clean_up_tokenization_spaces")) config["clean_up_tokenization_spaces"] = false;
  return config.dump(2) + "\n";
}

SentencePieceModel read_model(const std::filesystem::path& file) {
  return parse_sentencepiece_model(read_text_file(file, kMaxModelBytes), file.string());
}

std::unique_ptr<Tokenizer> make_tokenizer(const SentencePieceModel& model, const TokenizerConfig& config,
                                          const std::vector<AddedToken>& added, LlamaParts parts) {
  if (is_made_by_llama_class(model, config, added))
    return make_of_merges(model, merges_of_llama_class(model, config, added), std::move(parts));
  const bool may_cut = splits_before_spaces(llama_pieces(model));
  parts.dummy_prefix = model.normalizer.dummy_prefix && config.add_prefix_space.value_or(true);
  parts.strips_spaces = model.normalizer.remove_extra_spaces;
  auto encoding = encoding_parts(model, added, may_cut, parts.where);
  return std::make_unique<SentencePieceTokenizer>(parts, std::move(encoding), model);
}

std::map<std::string, std::string> marks_of(const SentencePieceModel& model) {
  std::map<std::string, std::string> marks;
  for (const auto& piece : model.pieces) {
    if (piece.text == model.bos_text) marks["bos_token"] = piece.text;
    if (piece.text == model.eos_text) marks["eos_token"] = piece.text;
    if (piece.type == Type::unknown) marks["unk_token"] = piece.text;
  }
  return marks;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& file,
                                                        const TokenizerConfig& config) {
  const auto model = read_model(file);
  const auto added = added_tokens_of(model, config, file.string());
  return make_tokenizer(model, config, added, llama_parts(model, config, added, file.string()));
}

FastTokenizerFiles fast_files_of_sentencepiece(const std::filesystem::path& directory) {
  const auto file = directory / "tokenizer.model";
  const auto model = read_model(file);
  const auto config = read_tokenizer_config(directory);
  const auto added = added_tokens_of(model, config, file.string());
  const auto parts = llama_parts(model, config, added, file.string());
  const bool is_of_class = is_made_by_llama_class(model, config, added);
  FastTokenizerFiles fast;
  if (!is_of_class) fast.missing = reason_against_merges(model);
  if (!fast.missing.empty()) return fast;
  const auto made = is_of_class ? merges_of_llama_class(model, config, added) : merges_by_score(model, config, added);
  const auto json = tokenizer_json(model, made, parts);
  auto read_config = config;
  read_config.hub_class = read_config.token_class = "PreTrainedTokenizerFast";
  const auto other = make_tokenizer_json(nlohmann::json(json), "tokenizer.json of " + file.string(), read_config);
  const auto own = make_tokenizer(model, config, added, parts);
  for (const auto& text : texts_of_all_pieces(model)) {
    if (own->encode_document(text) == other->encode_document(text)) continue;
    fast.missing = fmt::format("merges give other ids than the model, as for '{}'", text);
    return fast;
  }
  fast.files["tokenizer.json"] = json.dump() + "\n";
  fast.files["tokenizer_config.json"] = fast_config(directory, config, marks_of(model));
  return fast;
}

std::map<std::string, std::string> marks_of_sentencepiece(const std::filesystem::path& file) {
  return marks_of(read_model(file));
}

}  // namespace fsdp
