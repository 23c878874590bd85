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

#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {

/// One id of a vocabulary that writes spaces as U+2581.
struct LlamaPiece {
  enum class Kind : std::uint8_t {
    text,     ///< stands for its characters, U+2581 for a space
    byte,     ///< "<0x0A>" stands for one byte of a character that has no piece
    control,  ///< a mark outside all texts: stands for nothing
    literal   ///< stands for its name as it is
  };
  std::string text;
  Kind kind = Kind::text;
  bool is_optional = false;  ///< as of an AddedToken
};

/// U+2581, which stands for a space inside pieces. In a text it cannot be told from a space.
inline constexpr std::string_view kSpaceSign = "\xE2\x96\x81";

struct LlamaParts {
  VocabularyForm form = VocabularyForm::sentencepiece;
  std::string where;               ///< the vocabulary's file, for the description and errors
  std::vector<LlamaPiece> pieces;  ///< by id
  bool dummy_prefix = true;        ///< a text is encoded as if a space stood before it
  bool strips_spaces = false;      ///< texts lose the spaces that they begin with
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  DocumentMarks marks;
  std::optional<InfillIds> infill;
};

/// Places in a text, one for each byte of another text.
/// Takes 4 bytes for each place in a text of less than 4 GiB, else 8.
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

/// A text as the vocabulary normalizes it before it looks for pieces.
struct NormalizedText {
  std::string text;
  TextPlaces origins;  ///< for each of its bytes, and its end, a place in the text that it was made of
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
  std::int64_t vocab_size() const final { return texts_.size(); }
  std::int64_t required_rows() const final { return texts_.required(); }
  std::optional<std::int32_t> bos_id() const final { return bos_; }
  std::optional<std::int32_t> eos_id() const final { return eos_; }
  std::optional<InfillIds> infill_ids() const final { return infill_; }
  VocabularyForm form() const final { return form_; }
  std::string description() const final { return describe_vocabulary(form_, file_, vocab_size()); }

 protected:
  /// \param names  the added and control tokens, which encode_marked() looks for; those in `normalized()` are left to
  ///               append_aligned()
  MetaspaceTokenizer(LlamaParts parts, AddedTokenSearch names);

  /// Appends the ids of `text`, any bytes. \param dummy_prefix  it begins a text
  virtual void append(std::string_view text, bool dummy_prefix, StopWatch& watch,
                      std::vector<std::int32_t>& ids) const = 0;

  /// Appends the ids of a part of a text in which no name that is matched in raw text is left, with what each is of.
  /// \param begin  of the part in the text: 0, or a token is before it
  /// \param plain  where in the text names of special tokens are plain
  virtual void append_aligned(std::string_view part, std::size_t begin, std::span<const TextRange> plain,
                              AlignedIds& out) const = 0;

  /// Finds the parts of `text` that the ids without a part were made of; `begin` is added to each.
  /// \throws RuntimeFailure when the ids do not stand for its bytes
  void align(std::string_view text, std::size_t begin, AlignedIds& out) const;

  const AddedTokenSearch& names() const { return names_; }
  /// Whether a space is put before texts.
  bool dummy_prefix() const { return dummy_prefix_; }

  /// The ids of single bytes.
  const std::vector<std::int32_t>& byte_ids() const { return byte_ids_; }

 private:
  VocabularyForm form_;
  std::string file_;
  TokenTexts texts_;
  std::vector<bool> begins_with_space_;  ///< pieces that begin with U+2581
  std::vector<std::int32_t> byte_ids_;   ///< [256]
  bool dummy_prefix_;
  bool strips_spaces_;
  std::optional<std::int32_t> bos_;
  std::optional<std::int32_t> eos_;
  DocumentMarks marks_;
  AddedTokenSearch names_;
  std::optional<InfillIds> infill_;
};

/// Turns parts of a normalized text into those of what it was made of, from `first` on.
/// \param begin  of that in the whole text
void to_sources(const NormalizedText& normalized, std::size_t begin, std::size_t first, std::vector<TextRange>& parts);

/// Adds the tokens to the pieces. An id that is a piece of the same text already stays what it is.
/// \throws FormatError for an id that cannot be
void add_tokens(const std::vector<AddedToken>& tokens, const std::string& where, std::vector<LlamaPiece>& pieces);

/// The id with this text, the first of several.
std::optional<std::int32_t> find_piece(const std::vector<LlamaPiece>& pieces, std::string_view text);

/// The marks named in `config`; none unless all four are in the vocabulary.
std::optional<InfillIds> find_infill_ids(const std::vector<LlamaPiece>& pieces, const TokenizerConfig& config);

/// True when no piece has a space sign behind another character: then nothing merges across the beginning of a space,
/// and a text may be encoded in parts that begin there. Literal pieces, which no merge makes, do not count.
bool splits_before_spaces(const std::vector<LlamaPiece>& pieces);

}  // namespace fsdp
