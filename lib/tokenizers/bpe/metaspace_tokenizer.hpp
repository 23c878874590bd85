#pragma once
// Base class of tokenizers whose vocabularies write a space as U+2581 (Metaspace): Llama, Mistral, Gemma. The
// vocabulary comes from tokenizer.model or tokenizer.json.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// One id of a vocabulary that writes spaces as U+2581.
struct LlamaPiece {
  enum class Kind : std::uint8_t {
    text,     ///< characters, with U+2581 for a space
    byte,     ///< "<0x0A>": one byte of a character that has no piece
    control,  ///< a mark outside texts; decodes to nothing
    literal   ///< decodes to its name
  };
  std::string text;
  Kind kind = Kind::text;
  bool is_optional = false;  ///< see AddedToken
};

/// U+2581, which stands for a space inside pieces. A text that contains U+2581 itself decodes to a space there.
inline constexpr std::string_view kSpaceSign = "\xE2\x96\x81";

struct LlamaParts {
  VocabularyForm form = VocabularyForm::sentencepiece;
  std::string where;               ///< the vocabulary's file, for the description and errors
  std::vector<LlamaPiece> pieces;  ///< by id
  bool dummy_prefix = true;        ///< a text is encoded as if a space stood before it
  bool strips_spaces = false;      ///< spaces at the beginning of texts are removed
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  DocumentMarks marks;
  std::optional<InfillIds> infill;
};

/// Places in a text, one for each byte of a text that was made of it. Takes 4 bytes per place for texts of less than 4
/// GiB, else 8.
class TextPlaces {
 public:
  /// \param text_bytes  the largest place
  explicit TextPlaces(std::size_t text_bytes = 0) : is_wide_(text_bytes > std::numeric_limits<std::uint32_t>::max()) {}

  void add(std::size_t place, std::size_t times = 1) {
    if (is_wide_) {
      wide_.insert(wide_.end(), times, place);
    } else {
      narrow_.insert(narrow_.end(), times, static_cast<std::uint32_t>(place));
    }
  }
  void resize(std::size_t size) {
    if (is_wide_) {
      wide_.resize(size);
    } else {
      narrow_.resize(size);
    }
  }
  std::size_t size() const { return is_wide_ ? wide_.size() : narrow_.size(); }
  std::size_t operator[](std::size_t i) const { return is_wide_ ? wide_[i] : narrow_[i]; }

 private:
  bool is_wide_;
  std::vector<std::uint32_t> narrow_;
  std::vector<std::size_t> wide_;
};

/// A text after the normalization of the vocabulary, in which pieces are searched.
struct NormalizedText {
  std::string text;
  TextPlaces origins;  ///< for each byte of `text`, and for its end, a place in the original text
};

class MetaspaceTokenizer : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const final;
  std::vector<std::int32_t> encode_document(std::string_view text, const StopTest& stop = {}) const final;
  AlignedIds encode_marked(std::string_view text, std::span<const TextRange> plain) const final;
  std::optional<std::int32_t> named_id(std::string_view name) const final { return names_.find(name); }
  const DocumentMarks& document_marks() const final { return marks_; }
  std::vector<std::int32_t> encode_infill(std::string_view prefix, std::string_view suffix) const final;
  std::string decode(std::span<const std::int32_t> ids) const final;
  std::string decode_one(std::int32_t id) const final { return texts_.of(id); }
  bool is_byte(std::int32_t id) const final;
  std::int64_t vocab_size() const final { return texts_.size(); }
  std::int64_t required_rows() const final { return texts_.required(); }
  std::optional<std::int32_t> bos_id() const final { return bos_; }
  std::optional<std::int32_t> eos_id() const final { return eos_; }
  std::optional<InfillIds> infill_ids() const final { return infill_; }
  VocabularyForm form() const final { return form_; }
  std::string description() const final { return describe_vocabulary(form_, file_, vocab_size()); }

 protected:
  /// \param names  added and control tokens, which encode_marked() finds; append_aligned() finds those in normalized()
  MetaspaceTokenizer(LlamaParts parts, AddedTokenSearch names);

  /// Appends the ids of `text`, which may be any bytes. \param dummy_prefix  true at the beginning of a text
  virtual void append(std::string_view text, bool dummy_prefix, StopWatch& watch,
                      std::vector<std::int32_t>& ids) const = 0;

  /// Appends the ids of a part of a text that contains no name matched in raw text, and the range of each id.
  /// \param begin  place of the part in the text: 0, or a token is before it
  /// \param plain  ranges of the text in which names of special tokens are plain text
  virtual void append_aligned(std::string_view part, std::size_t begin, std::span<const TextRange> plain,
                              AlignedIds& out) const = 0;

  /// Finds the ranges of `text` for the ids in `out` that have none yet; adds `begin` to each.
  /// \throws RuntimeFailure when the ids do not decode to the bytes of `text`
  void align(std::string_view text, std::size_t begin, AlignedIds& out) const;

  const AddedTokenSearch& names() const { return names_; }
  /// True when a space is put before texts.
  bool dummy_prefix() const { return dummy_prefix_; }

  /// The ids of single bytes.
  const std::vector<std::int32_t>& byte_ids() const { return byte_ids_; }

 private:
  VocabularyForm form_;
  std::string file_;
  TokenTexts texts_;
  std::vector<bool> begins_with_space_;  ///< pieces that begin with U+2581
  std::vector<bool> is_byte_;            ///< pieces for single bytes
  std::vector<std::int32_t> byte_ids_;   ///< [256]
  bool dummy_prefix_;
  bool strips_spaces_;
  std::optional<std::int32_t> bos_;
  std::optional<std::int32_t> eos_;
  DocumentMarks marks_;
  AddedTokenSearch names_;
  std::optional<InfillIds> infill_;
};

/// Maps the ranges parts[first...] from the normalized text to the original text.
/// \param begin  place of the original text in the whole text
void to_sources(const NormalizedText& normalized, std::size_t begin, std::size_t first, std::vector<TextRange>& parts);

/// Adds the tokens to the pieces. A piece that already has the text of its token keeps its kind.
/// \throws FormatError for an impossible id
void add_tokens(const std::vector<AddedToken>& tokens, const std::string& where, std::vector<LlamaPiece>& pieces);

/// Returns the first id with this text.
std::optional<std::int32_t> find_piece(const std::vector<LlamaPiece>& pieces, std::string_view text);

/// Returns the infilling marks named in `config`, if all four are in the vocabulary.
std::optional<InfillIds> find_infill_ids(const std::vector<LlamaPiece>& pieces, const TokenizerConfig& config);

/// True when no piece has a space sign after another character. Then nothing merges across the beginning of a space,
/// and a text may be encoded in parts that begin there. Literal pieces, which no merge makes, do not count.
bool splits_before_spaces(const std::vector<LlamaPiece>& pieces);

}  // namespace fsdp
