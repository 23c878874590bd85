#include "lib/engine/runtime/model_text.hpp"

#include <fmt/format.h>

#include "lib/base/types/error.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {

void check_vocabulary(const Tokenizer& tokenizer, const std::string& name, const ModelConfig& config) {
  if (tokenizer.required_rows() <= config.vocab_size) return;
  throw FormatError(
      fmt::format("the tokenizer {} ({}) has {} ids, the model has embeddings for {} only: they do not belong together",
                  name, tokenizer.description(), tokenizer.required_rows(), config.vocab_size));
}

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.encode_document(text);
  const auto end = tokenizer.eos_id();
  // Names of marks in a text are plain text: an end mark is the tokenizer's own.
  if (ids.size() > 1 && end && ids.back() == *end) ids.pop_back();
  return ids;
}

std::string architecture_name(const ModelConfig& config) { return std::string(facts_of(config).type); }

}  // namespace fsdp
