#pragma once
// Byte-level byte-pair encoding: texts are split into words, and pairs of bytes are merged inside each word.
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/bpe/bpe_merges.hpp"
#include "lib/tokenizers/bpe/pre_tokenizer.hpp"
#include "lib/tokenizers/vocabulary/added_tokens.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// The parts of a byte-level vocabulary.
struct ByteLevelParts {
  VocabularyForm form = VocabularyForm::byte_level_bpe;
  std::string where;                              ///< the file of the pieces, for the description and errors
  std::vector<std::string> pieces;                ///< bytes of each id; empty for gaps
  std::map<std::int32_t, std::string> unreached;  ///< texts of ids that only a name stands for, gaps of `pieces`
  BpeMerges merges;
  std::vector<SplitPattern> patterns;
  std::vector<SplitPattern> of_bytes;  ///< see PreTokenizer
  std::vector<AddedToken> added_tokens;
  DocumentMarks marks;
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  bool composes = false;       ///< texts are normalized to NFC
  bool ignore_merges = false;  ///< a word that is a piece becomes that piece, even if merges do not lead to it

  /// Sets pieces and unreached. \param spelled  pieces by id, as files spell them
  void set_pieces(const std::vector<std::string>& spelled);
};

class ByteLevelTokenizer final : public Tokenizer {
 public:
  /// \throws FormatError when a byte has no piece or an added token cannot be
  explicit ByteLevelTokenizer(ByteLevelParts parts);

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<std::int32_t> encode_document(std::string_view text, const StopTest& stop = {}) const override;
  AlignedIds encode_marked(std::string_view text, std::span<const TextRange> plain) const override;
  std::optional<std::int32_t> named_id(std::string_view name) const override { return names_.find(name); }
  const DocumentMarks& document_marks() const override { return marks_; }
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string decode_one(std::int32_t id) const override { return texts_.of(id); }
  std::int64_t vocab_size() const override { return texts_.size(); }
  std::int64_t required_rows() const override { return texts_.required(); }
  std::optional<std::int32_t> bos_id() const override { return bos_; }
  std::optional<std::int32_t> eos_id() const override { return eos_; }
  VocabularyForm form() const override { return form_; }
  std::string description() const override { return describe_vocabulary(form_, file_, vocab_size()); }

 private:
  std::string normalized(const std::string& text) const;
  std::vector<std::int32_t> encode_text(std::string_view text, const StopTest& stop) const;
  /// Appends the ids of a part of a text that contains no token matched in raw text.
  void append(std::string_view text, StopWatch& watch, std::vector<std::int32_t>& ids) const;
  /// \param begin  place of `text` in the whole text
  void append_aligned(std::string_view text, std::size_t begin, std::span<const TextRange> plain,
                      AlignedIds& out) const;
  void append_word(std::string_view word, std::vector<std::int32_t>& scratch, std::vector<std::int32_t>& ids) const;
  /// \param text  normalized
  void append_words(std::string_view text, StopWatch& watch, std::vector<std::int32_t>& ids) const;
  /// \param part   part of `text`; the ranges of `out` are places in `text`
  void append_aligned_words(std::string_view text, std::string_view part, AlignedIds& out) const;

  VocabularyForm form_;
  std::string file_;
  PieceIds piece_ids_;
  TokenTexts texts_;
  BpeMerges merges_;
  PreTokenizer words_;
  bool composes_;
  AddedTokenSearch added_tokens_;
  AddedTokenSearch names_;  ///< tokens that encode_marked() finds, special ones included
  DocumentMarks marks_;
  std::optional<std::int32_t> bos_;
  std::optional<std::int32_t> eos_;
  bool ignore_merges_;
  std::array<std::int32_t, 256> byte_ids_{};
};

/// A merge of two pieces, both spelled or both as bytes.
struct MergePair {
  std::string left;
  std::string right;
};

/// Makes the table of `merges` of `pieces`, sorted by frequency, the most frequent first. The last place of a repeated
/// merge counts, as in the tokenizers library. \throws FormatError naming a merge with a piece that is not in the
/// vocabulary
BpeMerges merge_table(const std::vector<MergePair>& merges, const PieceIds& pieces, const std::string& where);

}  // namespace fsdp
