#include "lib/training/data/token_origin.hpp"

#include <fmt/format.h>

#include <string_view>

#include "lib/base/error.hpp"
#include "lib/text/token_files/token_notes.hpp"

namespace fsdp {
namespace {

/// The kind of vocabulary in a description ("GPT-2, 50257 ids", "SentencePiece BPE of DIR, 32016 ids"). One vocabulary
/// may be stored in either form of its kind.
std::string_view kind_of(std::string_view description) {
  if (description.starts_with("GPT-2") || description.starts_with("byte-level BPE")) return "byte-level BPE";
  if (description.starts_with("SentencePiece") || description.starts_with("BPE with byte fallback")) {
    return "SentencePiece";
  }
  return "";
}

}  // namespace

void check_token_origin(const std::filesystem::path& file, const Tokenizer* tokenizer, const ModelConfig& model) {
  const auto notes = read_token_notes(file);
  const auto origin =
      fmt::format("{}: its ids are {}'s ({})", file.string(), notes.tokenizer, notes.tokenizer_description);
  const char* cure = "; encode the texts with the model's tokenizer, or insist with --allow-other-tokenizer";
  const bool same_size = tokenizer != nullptr && (notes.vocab_size == tokenizer->vocab_size() ||
                                                  notes.vocab_size == tokenizer->required_rows());
  if (notes.vocab_size > model.vocab_size && !(same_size && tokenizer->required_rows() <= model.vocab_size)) {
    throw FormatError(fmt::format("{}, a vocabulary of {}, and the model's has {}{}", origin, notes.vocab_size,
                                  model.vocab_size, cure));
  }
  if (tokenizer == nullptr || notes.tokenizer_description.empty()) return;
  const auto known = kind_of(notes.tokenizer_description), wanted = kind_of(tokenizer->description());
  const bool other_kind = !known.empty() && !wanted.empty() && known != wanted;
  if (other_kind || (notes.vocab_size > 0 && !same_size)) {
    throw FormatError(fmt::format("{}, the model's tokenizer is {}{}", origin, tokenizer->description(), cure));
  }
}

}  // namespace fsdp
