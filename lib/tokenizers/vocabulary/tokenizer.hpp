#pragma once
// Text to token ids and back.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/vocabulary/added_tokens.hpp"

namespace fsdp {

// The marks a tokenizer puts around a whole text.

struct DocumentMarks {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;

  /// Returns `before`, `ids`, `after`.
  std::vector<std::int32_t> around(std::vector<std::int32_t> ids) const {
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), after.begin(), after.end());
    return ids;
  }
};

/// CodeLlama's marks for infilling, which fills the middle of a text.
struct InfillIds {
  std::int32_t prefix;
  std::int32_t suffix;
  std::int32_t middle;
  std::int32_t end;  ///< the model writes it when the middle is complete
};

/// Ids, and for each id the range of the text that it was made of. A range may be empty (a space that is put before a
/// text) or overlap its neighbours (bytes of one composed character).
struct AlignedIds {
  std::vector<std::int32_t> ids;
  std::vector<TextRange> parts;
};

/// Polled while a long text is encoded; true stops the encoding. Empty: never.
using StopTest = std::function<bool()>;

/// Thrown after a StopTest returned true. Not an error: the caller that passed the StopTest catches it.
class EncodingStopped {};

/// Polls a StopTest every few thousand words.
class StopWatch {
 public:
  explicit StopWatch(const StopTest& wanted) : wanted_(wanted) {}
  /// \throws EncodingStopped
  void step(std::size_t words = 1) {
    constexpr std::size_t words_between = 1 << 12;  // a millisecond
    words_ += words;
    if (words_ < words_between || !wanted_) return;
    words_ = 0;
    if (wanted_()) throw EncodingStopped();
  }

 private:
  const StopTest& wanted_;
  std::size_t words_ = 0;
};

/// How a vocabulary makes ids of texts, and the kind of file that it was read from.
enum class VocabularyForm : std::uint8_t {
  gpt2,              ///< byte-level BPE, built in
  byte_level_bpe,    ///< byte-level BPE of vocab.json or tokenizer.json
  sentencepiece,     ///< BPE over characters with byte fallback, of tokenizer.model
  byte_fallback_bpe  ///< BPE over characters with byte fallback, of tokenizer.json
};

/// "SentencePiece BPE of FILE, 32016 ids", as logs and token files name a vocabulary; the built-in one has no file.
std::string describe_vocabulary(VocabularyForm form, const std::string& file, std::int64_t num_ids);

/// The form in a text of describe_vocabulary(); nothing for other texts.
std::optional<VocabularyForm> described_form(std::string_view description);

/// True when both forms make ids of texts in the same way, so that they may hold one vocabulary.
bool may_be_one_vocabulary(VocabularyForm a, VocabularyForm b);

/// One vocabulary, which does not change: any number of threads may use it.
class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// Returns the ids of `text`, without beginning or end marks. Names of special tokens in the text are plain text.
  /// Bytes that are not valid UTF-8 are encoded, too.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

  /// Returns the bytes of the ids; a sampled sequence need not be valid UTF-8.
  /// \throws RequestError naming an id that is not in [0, vocab_size())
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  /// Returns the bytes of one id inside a text. They may begin or end within a character: generated_text.hpp makes text
  /// of a stream of ids.
  /// \throws RequestError as decode
  virtual std::string decode_one(std::int32_t id) const = 0;

  /// Whether the id stands for one byte of characters that have no piece (byte fallback).
  virtual bool is_byte(std::int32_t /*id*/) const { return false; }

  /// Number of ids, as transformers counts them.
  virtual std::int64_t vocab_size() const = 0;

  /// Number of rows that the embedding of a model must have at least: all ids except ids beyond the vocabulary that
  /// only a name in a config file refers to, such as CodeLlama's fill_token, for which the model has no row.
  virtual std::int64_t required_rows() const { return vocab_size(); }

  /// Marks of the beginning and the end of a text, if the vocabulary has them.
  virtual std::optional<std::int32_t> bos_id() const = 0;
  virtual std::optional<std::int32_t> eos_id() const = 0;

  /// Returns the ids of a whole text as Hugging Face's tokenizer does by default: with the beginning mark for Llama's
  /// vocabularies, without marks for GPT-2's.
  /// \throws EncodingStopped
  virtual std::vector<std::int32_t> encode_document(std::string_view text, const StopTest& stop = {}) const = 0;

  /// Returns the ids of a text in which names of special tokens stand for these tokens, without marks around it: as
  /// transformers encodes the output of a chat template (add_special_tokens=False).
  /// \param plain  ranges of `text` in which such a name is plain text, in order and disjoint
  /// \throws FormatError when a special token is met whose matching is not supported
  virtual AlignedIds encode_marked(std::string_view text, std::span<const TextRange> plain) const = 0;

  /// Returns the id of a token that encode_marked() finds by this name.
  virtual std::optional<std::int32_t> named_id(std::string_view name) const = 0;

  /// The marks that encode_document() puts around a text.
  virtual const DocumentMarks& document_marks() const = 0;

  /// Returns the marks of infilling, for vocabularies that have all four.
  virtual std::optional<InfillIds> infill_ids() const { return {}; }

  /// Returns the prompt for the text between `prefix` and `suffix`: the beginning mark, then <PRE> prefix <SUF> suffix
  /// <MID>. No space is put before the suffix, which continues a text.
  /// \throws RequestError when infill_ids() has none
  virtual std::vector<std::int32_t> encode_infill(std::string_view prefix, std::string_view suffix) const;

  virtual VocabularyForm form() const = 0;
  /// describe_vocabulary() of this one.
  virtual std::string description() const = 0;
};

}  // namespace fsdp
