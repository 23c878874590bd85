#include "lib/tokenizers/files/tokenizer_json.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/bpe/byte_fallback_bpe.hpp"
#include "lib/tokenizers/bpe/byte_level_tokenizer.hpp"
#include "lib/tokenizers/bpe/pre_tokenizer.hpp"
#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/added_tokens.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kMostIdGap = 1 << 16;

std::vector<std::string> read_pieces(const JsonValue& vocab, std::size_t num_added) {
  const auto& json = vocab.object();
  const std::size_t limit = json.size() + num_added + kMostIdGap;
  std::vector<std::string> pieces;
  pieces.reserve(json.size());
  for (const auto& [piece, id] : json.items()) {
    const JsonValue value(id, vocab.where() + ": '" + piece + "'");
    const std::int64_t number = value.integer();
    if (number < 0 || number >= static_cast<std::int64_t>(limit)) {
      value.fail("has id " + std::to_string(number) + ", but there are " + std::to_string(json.size()) + " pieces");
    }
    if (piece.empty()) value.fail("is empty");
    const auto index = to_index(number);
    if (index >= pieces.size()) pieces.resize(index + 1);
    if (!pieces[index].empty()) value.fail("has id " + std::to_string(number) + " as '" + pieces[index] + "' has");
    pieces[index] = piece;
  }
  return pieces;
}

std::pair<std::string, std::string> read_merge(const JsonValue& merge) {
  if (merge.is_string()) {
    const std::string& text = merge.string();
    const std::size_t space = text.find(' ');
    if (space == 0 || space == text.npos || space + 1 == text.size() || space != text.rfind(' ')) {
      merge.fail("is '" + text.substr(0, 60) + "', expected two pieces with one space between them");
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  const auto pair = merge.elements();
  if (pair.size() != 2) merge.fail("has " + std::to_string(pair.size()) + " pieces, expected two");
  return {pair[0].string(), pair[1].string()};
}

void read_template(const JsonValue& processor, DocumentMarks& marks) {
  const JsonValue specials = processor.get("special_tokens");
  bool before = true;
  for (const JsonValue& step : processor.at("single").elements()) {
    if (!step.get("Sequence").is_null()) {
      if (!before) step.fail("repeats the text, which is not supported");
      before = false;
      continue;
    }
    const std::string& name = step.at("SpecialToken").at("id").string();
    for (const JsonValue& id : specials.at(name).at("ids").elements()) {
      const std::int64_t number = id.integer();
      if (number < 0 || number > INT32_MAX) id.fail("is no token id");
      (before ? marks.before : marks.after).push_back(static_cast<std::int32_t>(number));
    }
  }
  if (before) processor.at("single").fail("leaves out the text");
}

/// Returns the "type" of `value`.
const std::string& type_of(const JsonValue& value) { return value.at("type").string(); }

/// Refuses a step of an unknown type. \param supported  the supported types, for the message
[[noreturn]] void refuse_type(const JsonValue& value, const std::string& supported) {
  value.fail("type " + type_of(value) + " is not supported, expected " + supported);
}

/// Refuses members that the tokenizers library does not know: they may change the ids.
void refuse_other_members(const JsonValue& value, std::initializer_list<std::string_view> known) {
  for (const auto& [name, member] : value.object().items()) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      value.get(name).fail("is not known: is the file of a newer version of tokenizers?");
  }
}

/// Returns the steps of a normalizer or pre-tokenizer: the members of a Sequence, the value itself, or none for null.
/// \param list  key of the members of a Sequence: "normalizers", "pretokenizers", ...
std::vector<JsonValue> steps_of(const JsonValue& value, std::string_view list) {
  if (value.is_null()) return {};
  if (type_of(value) != "Sequence") return {value};
  return value.at(list).elements();
}

/// Reads `model`. \param num_added  number of ids that added tokens take, which may fill gaps between the ids of pieces
JsonVocabulary read_model(const JsonValue& model, std::size_t num_added) {
  // Files of old versions do not name the type; only BPE has merges.
  const auto type = model.optional_string("type");
  if (type ? *type != "BPE" : model.get("merges").is_null()) {
    model.fail("type " + type.value_or("(none)") + " is not supported, expected BPE");
  }
  refuse_other_members(model, {"type", "vocab", "merges", "dropout", "unk_token", "fuse_unk", "byte_fallback",
                               "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"});
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.optional_string(option).value_or("").empty()) model.get(option).fail("is not supported");
  }
  const JsonValue dropout = model.get("dropout");
  if (!dropout.is_null() && dropout.json() != 0.0) dropout.fail("is not supported");
  JsonVocabulary read;
  read.byte_fallback = model.boolean("byte_fallback", false);
  read.ignore_merges = model.boolean("ignore_merges", false);
  read.pieces = read_pieces(model.at("vocab"), num_added);
  const auto merges = model.at("merges").elements();
  read.merges.reserve(merges.size());
  for (const JsonValue& merge : merges) read.merges.push_back(read_merge(merge));
  return read;
}

/// Reads the added tokens of the file, in its order.
std::vector<AddedToken> read_added_tokens(const JsonValue& list) {
  std::vector<AddedToken> tokens;
  std::set<std::int64_t> ids;
  if (list.is_null()) return tokens;
  for (const JsonValue& value : list.elements()) {
    AddedToken token = read_added_token(value);
    const std::int64_t id = value.at("id").integer();
    if (id < 0 || id > INT32_MAX) value.fail("has id " + std::to_string(id));
    if (!ids.insert(id).second) value.fail("has an id that another added token has");
    token.id = static_cast<std::int32_t>(id);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// Returns the added tokens of the file with the additions and changes of the config.
std::vector<AddedToken> added_tokens_of(const JsonVocabulary& model, const std::vector<AddedToken>& of_file,
                                        const std::string& where, const TokenizerConfig& config) {
  const PieceIds ids(model.pieces);
  const auto find = [&](const std::string& name) {
    const std::int32_t id = ids.find(name);
    return id == PieceIds::kNoId ? std::nullopt : std::optional(id);
  };
  const auto is_piece = [](const std::string& piece) { return !piece.empty(); };
  const auto count = std::count_if(model.pieces.begin(), model.pieces.end(), is_piece);
  return all_added_tokens({where, count, find}, of_file, config);
}

/// Reads the marks of a post-processor. \param vocab_size  ids must be below
DocumentMarks read_post_processor(const JsonValue& post_processor, std::int64_t vocab_size) {
  DocumentMarks marks;
  bool has_template = false;
  for (const JsonValue& step : steps_of(post_processor, "processors")) {
    if (type_of(step) == "ByteLevel") continue;  // changes offsets only
    if (type_of(step) != "TemplateProcessing" || has_template)
      refuse_type(step, "ByteLevel and one TemplateProcessing");
    has_template = true;
    read_template(step, marks);
  }
  for (const auto* ids : {&marks.before, &marks.after}) {
    for (const std::int32_t id : *ids) {
      if (id >= vocab_size) post_processor.fail("adds id " + std::to_string(id) + ", which is not in the vocabulary");
    }
  }
  return marks;
}

/// Returns the id of a mark: of the configured name, else of the first usual name that is an added token.
std::optional<std::int32_t> find_mark(const std::optional<std::string>& name,
                                      const std::vector<std::string_view>& usual_names,
                                      const std::vector<AddedToken>& tokens) {
  const auto find = [&](std::string_view text) -> std::optional<std::int32_t> {
    const auto found =
        std::find_if(tokens.begin(), tokens.end(), [&](const auto& token) { return token.text == text; });
    return found == tokens.end() ? std::nullopt : std::optional(found->id);
  };
  if (name) return find(*name);
  for (const std::string_view usual : usual_names) {
    if (const auto id = find(usual)) return id;
  }
  return {};
}

/// Reads which parts of a text are words. Patterns of cl100k have the behavior "Removed", inverted: only the matches
/// are kept, and they cover the text.
SplitKeeps read_behavior(const JsonValue& step) {
  const auto& behavior = step.at("behavior").string();
  if (behavior == "Isolated") return SplitKeeps::all;
  if (behavior != "Removed") step.at("behavior").fail("is neither Isolated nor Removed, which is all there is");
  return step.boolean("invert", false) ? SplitKeeps::matches : SplitKeeps::gaps;
}

SplitPattern punctuation_pattern(const JsonValue& step) {
  const auto behavior = step.optional_string("behavior").value_or("Isolated");
  if (behavior != "Isolated" && behavior != "Contiguous")
    step.at("behavior").fail("is neither Isolated nor Contiguous, which is all there is for Punctuation");
  return SplitPattern(CodePoints::punctuation(), behavior == "Contiguous");
}

SplitPattern read_split(const JsonValue& step) {
  if (type_of(step) == "Digits") return SplitPattern(CodePoints::numbers(), !step.boolean("individual_digits", false));
  if (type_of(step) == "Punctuation") return punctuation_pattern(step);
  if (type_of(step) != "Split") refuse_type(step, "Split, Digits, Punctuation and one ByteLevel");
  const auto keeps = read_behavior(step);
  const JsonValue pattern = step.at("pattern");
  const bool is_literal = !pattern.get("String").is_null();
  return SplitPattern(is_literal ? literal_pattern(pattern.get("String").string()) : pattern.at("Regex").string(),
                      pattern.where(), keeps);
}

/// Some classes make the ByteLevel step themselves, with a flag of their own, which is false unless the config sets it.
bool has_prefix_space(const JsonValue& bytes, const TokenizerConfig& config) {
  if (makes_byte_level_step(config.token_class)) return config.add_prefix_space.value_or(false);
  return bytes.boolean("add_prefix_space", true);
}

bool spells_bytes(const JsonValue& step) { return type_of(step) == "ByteLevel"; }

/// \param steps  steps of the pre-tokenizer, of which one is ByteLevel. Those after it split what it has spelled
void read_patterns(const std::vector<JsonValue>& steps, const TokenizerConfig& config, ByteLevelParts& parts) {
  const auto bytes = std::find_if(steps.begin(), steps.end(), spells_bytes);
  for (auto step = steps.begin(); step != bytes; ++step) parts.patterns.push_back(read_split(*step));
  if (has_prefix_space(*bytes, config)) {
    if (makes_byte_level_step(config.token_class)) refuse_prefix_space(config);
    bytes->fail("add_prefix_space is not supported");
  }
  if (bytes->boolean("use_regex", true)) parts.patterns.emplace_back(gpt2_pattern());
  for (auto step = std::next(bytes); step != steps.end(); ++step) {
    if (type_of(*step) == "Split" && read_behavior(*step) != SplitKeeps::all)
      step->at("behavior").fail("is not Isolated, which is all there is after ByteLevel");
    parts.of_bytes.push_back(read_split(*step));
  }
}

std::unique_ptr<Tokenizer> make_byte_level(const JsonValue& root, JsonVocabulary model, const TokenizerConfig& config) {
  auto& added = model.added;
  if (model.byte_fallback) root.get("model").fail("byte_fallback with a ByteLevel pre-tokenizer is not supported");
  ByteLevelParts parts;
  for (const JsonValue& step : steps_of(root.get("normalizer"), "normalizers")) {
    if (type_of(step) != "NFC") refuse_type(step, "NFC, or no normalizer, before ByteLevel");
    parts.composes = true;
  }
  parts.where = root.where();
  read_patterns(steps_of(root.get("pre_tokenizer"), "pretokenizers"), config, parts);
  parts.ignore_merges = model.ignore_merges;
  parts.set_pieces(model.pieces);
  std::vector<MergePair> merges;
  for (const auto& [left, right] : model.merges) merges.push_back({left, right});
  parts.merges = merge_table(merges, PieceIds(model.pieces), root.get("model").where());
  if (!config.is_null("bos_token"))
    parts.bos = find_mark(config.bos_token, {"<|begin_of_text|>", "<|endoftext|>", "<s>"}, added);
  if (!config.is_null("eos_token"))
    parts.eos = find_mark(config.eos_token, {"<|end_of_text|>", "<|endoftext|>", "</s>"}, added);
  TokenTexts texts(parts.pieces);
  add_to_vocabulary(added, root.where(), texts);
  parts.marks = read_post_processor(root.get("post_processor"), texts.size());
  parts.added_tokens = std::move(added);
  return std::make_unique<ByteLevelTokenizer>(std::move(parts));
}

/// Reads the normalizer and the pre-tokenizer of Llama's kind.
void read_spaces(const JsonValue& root, ByteFallbackParts& parts) {
  bool replaced = false;
  for (const JsonValue& step : steps_of(root.get("normalizer"), "normalizers")) {
    if (type_of(step) == "Prepend" && !replaced && step.at("prepend").string() == kSpaceSign) {
      parts.prefix = SpacePrefix::prepend;
    } else if (type_of(step) == "Replace" && step.at("pattern").get("String").json() == " " &&
               step.at("content").string() == kSpaceSign) {
      replaced = true;
    } else {
      step.fail("is not supported, expected Prepend with U+2581 and Replace of spaces by it");
    }
  }
  parts.normalizes_spaces = replaced;
  const auto steps = steps_of(root.get("pre_tokenizer"), "pretokenizers");
  if (steps.empty()) {
    if (!replaced) root.get("normalizer").fail("does not replace spaces by U+2581, and no pre-tokenizer does");
    return;
  }
  const JsonValue& step = steps.front();
  // Gemma's pre-tokenizer splits at spaces, but its normalizer has replaced all spaces.
  if (replaced && steps.size() == 1 && type_of(step) == "Split" && step.at("pattern").get("String").json() == " ")
    return;
  if (type_of(step) != "Metaspace" || steps.size() != 1) refuse_type(step, "one Metaspace or ByteLevel");
  if (step.at("replacement").string() != kSpaceSign) step.at("replacement").fail("is not U+2581");
  if (parts.prefix == SpacePrefix::prepend) step.fail("together with a normalizer Prepend is not supported");
  parts.split_at_spaces = step.boolean("split", true);
  const bool add = step.boolean("add_prefix_space", true);
  const std::string scheme = step.optional_string("prepend_scheme").value_or(add ? "always" : "never");
  if (scheme == "always") parts.prefix = SpacePrefix::metaspace_always;
  if (scheme == "first") parts.prefix = SpacePrefix::metaspace_first;
  if (scheme != "always" && scheme != "first" && scheme != "never") step.get("prepend_scheme").fail("is not known");
}

LlamaPiece llama_piece(const std::string& text) {
  const bool byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
  return {text, byte ? LlamaPiece::Kind::byte : LlamaPiece::Kind::text};
}

std::unique_ptr<Tokenizer> make_byte_fallback(const JsonValue& root, JsonVocabulary model,
                                              const TokenizerConfig& config) {
  auto& added = model.added;
  if (model.ignore_merges) root.get("model").fail("ignore_merges with byte_fallback is not supported");
  ByteFallbackParts parts;
  read_spaces(root, parts);
  // The Llama classes put no space before texts when the config says so, whatever the file says.
  const bool is_llama = config.token_class == "LlamaTokenizer" || config.token_class == "CodeLlamaTokenizer";
  if (is_llama && !config.add_prefix_space.value_or(true)) parts.prefix = SpacePrefix::none;
  LlamaParts& llama = parts.llama;
  llama.where = root.where();
  llama.form = VocabularyForm::byte_fallback_bpe;
  llama.dummy_prefix = parts.prefix != SpacePrefix::none;
  std::vector<MergePair> merges;
  for (const auto& [left, right] : model.merges) merges.push_back({left, right});
  parts.merges = merge_table(merges, PieceIds(model.pieces), root.get("model").where());
  for (const auto& piece : model.pieces) llama.pieces.push_back(llama_piece(piece));
  if (!config.is_null("bos_token")) llama.bos = find_mark(config.bos_token, {"<s>"}, added);
  if (!config.is_null("eos_token")) llama.eos = find_mark(config.eos_token, {"</s>"}, added);
  for (const auto& id : {llama.bos, llama.eos}) {
    if (id && static_cast<std::size_t>(*id) < llama.pieces.size()) {
      element(llama.pieces, *id).kind = LlamaPiece::Kind::control;
    }
  }
  add_tokens(added, root.where(), llama.pieces);
  llama.infill = find_infill_ids(llama.pieces, config);
  llama.marks = read_post_processor(root.get("post_processor"), std::ssize(llama.pieces));
  parts.added_tokens = std::move(added);
  return std::make_unique<ByteFallbackBpe>(std::move(parts));
}

}  // namespace

JsonVocabulary read_json_vocabulary(const JsonValue& root, const TokenizerConfig& config) {
  refuse_other_members(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                              "model", "post_processor", "decoder"});
  const auto version = root.optional_string("version").value_or("1.0");
  if (version != "1.0") root.get("version").fail("is " + version + ", expected 1.0");
  const auto of_file = read_added_tokens(root.get("added_tokens"));
  auto model = read_model(root.at("model"), of_file.size() + config.added_tokens.size());
  model.added = added_tokens_of(model, of_file, root.where(), config);
  return model;
}

std::unique_ptr<Tokenizer> make_tokenizer_json(const std::filesystem::path& file, const TokenizerConfig& config) {
  return make_tokenizer_json(read_json_object(file), file.string(), config);
}

std::unique_ptr<Tokenizer> make_tokenizer_json(const nlohmann::json& json, const std::string& where,
                                               const TokenizerConfig& config) {
  const JsonValue root(json, where);
  auto model = read_json_vocabulary(root, config);
  const auto steps = steps_of(root.get("pre_tokenizer"), "pretokenizers");
  if (std::any_of(steps.begin(), steps.end(), spells_bytes)) {
    return make_byte_level(root, std::move(model), config);
  }
  if (!model.byte_fallback) {
    root.get("pre_tokenizer").fail("does not end in ByteLevel, and the model has no byte_fallback: not supported");
  }
  return make_byte_fallback(root, std::move(model), config);
}

}  // namespace fsdp
