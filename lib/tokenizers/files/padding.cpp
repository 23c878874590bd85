#include "lib/tokenizers/files/padding.hpp"

#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace fsdp {

std::optional<std::int32_t> padding_of(const std::string& name, const Tokenizer& tokenizer) {
  const auto named = named_special_tokens(name);
  const auto pad = named.find("pad_token");
  const auto id = pad == named.end() ? std::nullopt : tokenizer.named_id(pad->second);
  return id ? id : tokenizer.eos_id();
}

}  // namespace fsdp
