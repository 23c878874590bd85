#pragma once
// The text of ids that a model generates.
#include <cstdint>
#include <span>
#include <string>

#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// Makes text of ids, one after the other, inside a text: the first one keeps its space. A run of ids for single bytes
/// (byte fallback) is text if it is UTF-8 as a whole; otherwise each of its bytes is U+FFFD, as in the decoder
/// ByteFallback of Hugging Face's tokenizers. Bytes of byte-level vocabularies are kept as they are.
class GeneratedText {
 public:
  /// \param tokenizer  must outlive this
  explicit GeneratedText(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Ids beyond the vocabulary, as a model may have more than its tokenizer, and marks give nothing.
  /// \return the text that is complete now: no half character, and nothing of a run that may go on
  std::string add(std::int32_t id);
  /// \return the rest
  std::string end();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool is_run_ = false;  ///< pending_ are bytes of a run
};

/// The text of all ids.
std::string continuation(const Tokenizer& tokenizer, std::span<const std::int32_t> ids);

}  // namespace fsdp
