#include "lib/tokenizers/vocabulary/tokenizer.hpp"

#include <array>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

// Names by VocabularyForm. Token files contain these words.
constexpr std::array<std::string_view, 4> kForms{"GPT-2", "byte-level BPE", "SentencePiece BPE",
                                                 "BPE with byte fallback"};

bool is_byte_level(VocabularyForm form) {
  return form == VocabularyForm::gpt2 || form == VocabularyForm::byte_level_bpe;
}

}  // namespace

std::string describe_vocabulary(VocabularyForm form, const std::string& file, std::int64_t num_ids) {
  std::string text(element(kForms, form));
  if (form != VocabularyForm::gpt2) text += " of " + file;
  return text + ", " + std::to_string(num_ids) + " ids";
}

std::optional<VocabularyForm> described_form(std::string_view description) {
  for (std::size_t i = 0; i < kForms.size(); ++i) {
    if (description.starts_with(kForms[i])) return static_cast<VocabularyForm>(i);
  }
  return {};
}

bool may_be_one_vocabulary(VocabularyForm a, VocabularyForm b) { return is_byte_level(a) == is_byte_level(b); }

std::vector<std::int32_t> Tokenizer::encode_infill(std::string_view, std::string_view) const {
  throw RequestError("the vocabulary (" + description() +
                     ") has no marks for infilling: take a model that was trained for it, such as CodeLlama-7b");
}

}  // namespace fsdp
