#include "lib/text/tokenizer/tokenizer_json.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/text/tokenizer/byte_alphabet.hpp"
#include "lib/text/tokenizer/byte_fallback_bpe.hpp"
#include "lib/text/tokenizer/byte_level_tokenizer.hpp"
#include "lib/text/tokenizer/json_file.hpp"
#include "lib/text/tokenizer/oniguruma.hpp"
#include "lib/text/tokenizer/tokenizer_json_model.hpp"

namespace fsdp {
namespace {

using detail::refuse_type;
using detail::steps_of;
using detail::type_of;

SplitPattern compiled(const std::string& pattern, const JsonValue& where, SplitKeeps keeps = SplitKeeps::all) {
  try {
    return SplitPattern(pattern, keeps);
  } catch (const RuntimeFailure& error) {
    where.fail(error.what());
  }
}

/// "Removed" is what cl100k's patterns have, inverted: the matches are kept, and they are all there is.
SplitKeeps read_behavior(const JsonValue& step) {
  const auto& behavior = step.at("behavior").string();
  if (behavior == "Isolated") return SplitKeeps::all;
  if (behavior != "Removed") step.at("behavior").fail("is neither Isolated nor Removed, which is all there is");
  return step.boolean("invert", false) ? SplitKeeps::matches : SplitKeeps::gaps;
}

SplitPattern read_split(const JsonValue& step) {
  if (type_of(step) == "Digits") return compiled(step.boolean("individual_digits", false) ? "\\p{N}" : "\\p{N}+", step);
  if (type_of(step) != "Split") refuse_type(step, "Split, Digits and a ByteLevel at the end");
  const auto keeps = read_behavior(step);
  const JsonValue pattern = step.at("pattern");
  if (!pattern.get("String").is_null()) return compiled(pcre2_literal(pattern.get("String").string()), pattern, keeps);
  return compiled(pcre2_from_oniguruma(pattern.at("Regex").string(), pattern.where()), pattern, keeps);
}

/// Classes that make the ByteLevel step anew have their own flag, which is false unless the config says otherwise.
bool has_prefix_space(const JsonValue& bytes, const TokenizerConfig& config) {
  if (makes_byte_level_step(config.token_class)) return config.add_prefix_space.value_or(false);
  return bytes.boolean("add_prefix_space", true);
}

/// \param steps  of the pre-tokenizer, the last of them ByteLevel
std::vector<SplitPattern> read_patterns(const std::vector<JsonValue>& steps, const TokenizerConfig& config) {
  std::vector<SplitPattern> patterns;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) patterns.push_back(read_split(steps[i]));
  const JsonValue& bytes = steps.back();
  if (has_prefix_space(bytes, config)) {
    if (makes_byte_level_step(config.token_class)) refuse_prefix_space(config);
    bytes.fail("add_prefix_space is not supported");
  }
  if (bytes.boolean("use_regex", true)) patterns.emplace_back(gpt2_pattern());
  return patterns;
}

std::unique_ptr<Tokenizer> make_byte_level(const JsonValue& root, detail::JsonModel model,
                                           std::vector<AddedToken> added, const TokenizerConfig& config) {
  if (model.byte_fallback) root.get("model").fail("byte_fallback with a ByteLevel pre-tokenizer is not supported");
  ByteLevelParts parts;
  for (const JsonValue& step : steps_of(root.get("normalizer"), "normalizers")) {
    if (type_of(step) != "NFC") refuse_type(step, "NFC, or no normalizer, before ByteLevel");
    parts.composes = true;
  }
  parts.where = root.where();
  parts.patterns = read_patterns(steps_of(root.get("pre_tokenizer"), "pretokenizers"), config);
  parts.ignore_merges = model.ignore_merges;
  for (auto& piece : model.pieces) parts.pieces.push_back(bytes_of_piece(piece));
  std::vector<MergePair> merges;
  for (const auto& [left, right] : model.merges) merges.push_back({bytes_of_piece(left), bytes_of_piece(right)});
  parts.merges = merge_table(merges, PieceIds(parts.pieces), root.get("model").where());
  parts.bos = detail::find_mark(config.bos_token, {"<|begin_of_text|>", "<|endoftext|>", "<s>"}, added);
  parts.eos = detail::find_mark(config.eos_token, {"<|end_of_text|>", "<|endoftext|>", "</s>"}, added);
  TokenTexts texts(parts.pieces);
  add_to_vocabulary(added, root.where(), texts);
  parts.marks = detail::read_post_processor(root.get("post_processor"), texts.size());
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
  // Gemma's splits at spaces, of which its normalizer has left none.
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

std::unique_ptr<Tokenizer> make_byte_fallback(const JsonValue& root, const detail::JsonModel& model,
                                              std::vector<AddedToken> added, const TokenizerConfig& config) {
  if (model.ignore_merges) root.get("model").fail("ignore_merges with byte_fallback is not supported");
  ByteFallbackParts parts;
  read_spaces(root, parts);
  // The classes of Llama put no space before texts where the config says so, whatever the file does.
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
  llama.bos = detail::find_mark(config.bos_token, {"<s>"}, added);
  llama.eos = detail::find_mark(config.eos_token, {"</s>"}, added);
  for (const auto& id : {llama.bos, llama.eos}) {
    if (id && static_cast<std::size_t>(*id) < llama.pieces.size()) {
      llama.pieces[static_cast<std::size_t>(*id)].kind = LlamaPiece::Kind::control;
    }
  }
  add_tokens(added, root.where(), llama.pieces);
  llama.infill = find_infill_ids(llama.pieces, config);
  llama.marks = detail::read_post_processor(root.get("post_processor"), static_cast<std::int64_t>(llama.pieces.size()));
  parts.added_tokens = std::move(added);
  return std::make_unique<ByteFallbackBpe>(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_json(const std::filesystem::path& file, const TokenizerConfig& config) {
  const auto json = read_json_object(file);
  const JsonValue root(json, file.string());
  const auto of_file = detail::read_added_tokens(root.get("added_tokens"));
  auto model = detail::read_model(root.at("model"), of_file.size() + config.added_tokens.size());
  auto added = detail::added_tokens_of(model, of_file, root.where(), config);
  const auto steps = steps_of(root.get("pre_tokenizer"), "pretokenizers");
  if (!steps.empty() && type_of(steps.back()) == "ByteLevel") {
    return make_byte_level(root, std::move(model), std::move(added), config);
  }
  if (!model.byte_fallback) {
    root.get("pre_tokenizer").fail("does not end in ByteLevel, and the model has no byte_fallback: not supported");
  }
  return make_byte_fallback(root, model, std::move(added), config);
}

}  // namespace fsdp
