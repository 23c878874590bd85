#include "lib/text/tokenizer/sentencepiece_tokenizer.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/text/tokenizer/added_vocabulary.hpp"
#include "lib/text/tokenizer/llama_class.hpp"
#include "lib/text/tokenizer/metaspace_tokenizer.hpp"
#include "lib/text/tokenizer/sentencepiece_model.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxModelBytes = 64u << 20;  // Llama's has 0.5 MB
constexpr std::size_t kWordBytes = 8;
constexpr std::size_t kPartBytes = 4096;  // the library takes longer per byte for longer texts

void load(sentencepiece::SentencePieceProcessor& processor, const std::string& serialized, const std::string& file) {
  const auto status = processor.LoadFromSerializedProto(serialized);
  if (!status.ok()) throw FormatError(file + ": SentencePiece refuses the model: " + status.ToString());
}

/// The parts of a model that the tokenizer uses besides its pieces.
struct EncodingParts {
  SentencePieceNormalizer normalizer;
  AddedTokenSearch added_tokens;  ///< that texts may name
  AddedTokenSearch names;         ///< of special tokens, too
  bool may_cut;                   ///< before spaces
};

class SentencePieceTokenizer final : public MetaspaceTokenizer {
 public:
  SentencePieceTokenizer(const LlamaParts& llama, EncodingParts parts, const std::string& serialized)
      : MetaspaceTokenizer(llama, std::move(parts.names)),
        normalizer_(std::move(parts.normalizer)),
        added_tokens_(std::move(parts.added_tokens)),
        may_cut_(parts.may_cut) {
    load(processor_, serialized, llama.where);
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

  /// Turn by turn: each part is a text of its own.
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
    std::vector<int> part_ids;
    while (!text.empty()) {
      const std::size_t valid = utf8_valid_prefix(text);
      std::string_view rest = text.substr(0, valid);
      while (!rest.empty()) {
        const std::string_view part = rest.substr(0, part_length(rest));
        const auto status = processor_.Encode(absl::string_view(part.data(), part.size()), &part_ids);
        if (!status.ok()) throw RuntimeFailure("SentencePiece cannot encode a text: " + status.ToString());
        ids.insert(ids.end(), part_ids.begin(), part_ids.end());
        rest.remove_prefix(part.size());
        watch.step(part.size() / kWordBytes);
      }
      text.remove_prefix(valid);
      // The library would replace these bytes by U+FFFD.
      while (!text.empty() && utf8_character_length(text) == 0) {
        ids.push_back(byte_ids()[static_cast<std::uint8_t>(text.front())]);
        text.remove_prefix(1);
      }
    }
  }

  /// How much of `text` to encode at once: up to a space with another character before it.
  std::size_t part_length(std::string_view text) const {
    if (!may_cut_) return text.size();
    for (std::size_t at = kPartBytes; at < text.size(); ++at) {
      if (text[at] != ' ' && !text.substr(at).starts_with(kSpaceSign)) continue;
      if (text[at - 1] != ' ' && !text.substr(0, at).ends_with(kSpaceSign)) return at;
    }
    return text.size();
  }

  sentencepiece::SentencePieceProcessor processor_;  ///< takes normalized texts
  SentencePieceNormalizer normalizer_;
  AddedTokenSearch added_tokens_;
  bool may_cut_;
};

/// The added tokens, as they stand in raw text, and the model's own marks.
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
          AddedTokenSearch(names, SpecialNames::tokens), may_cut};
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
  return all_added_tokens({where, static_cast<std::int64_t>(model.pieces.size()), find, true}, {}, config);
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& file,
                                                        const TokenizerConfig& config) {
  const auto model = parse_sentencepiece_model(read_text_file(file, kMaxModelBytes), file.string());
  const auto added = added_tokens_of(model, config, file.string());
  auto parts = llama_parts(model, config, added, file.string());
  if (is_made_by_llama_class(model, config, added)) return make_by_llama_class(model, config, added, std::move(parts));
  const bool may_cut = splits_before_spaces(llama_pieces(model));
  parts.dummy_prefix = model.normalizer.dummy_prefix && config.add_prefix_space.value_or(true);
  parts.strips_spaces = model.normalizer.remove_extra_spaces;
  auto encoding = encoding_parts(model, added, may_cut, parts.where);
  return std::make_unique<SentencePieceTokenizer>(parts, std::move(encoding), model.serialized);
}

}  // namespace fsdp
