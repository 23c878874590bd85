#include "lib/tokenizers/vocabulary/generated_text.hpp"

#include <cstddef>
#include <utility>

#include "lib/base/text/utf8.hpp"

namespace fsdp {
namespace {

std::string text_of_bytes(std::string bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) text += "\xEF\xBF\xBD";
  return text;
}

}  // namespace

std::string GeneratedText::add(std::int32_t id) {
  if (id < 0 || id >= tokenizer_.vocab_size()) return {};
  const auto bytes = tokenizer_.decode_one(id);
  if (bytes.empty()) return {};
  std::string ready;
  if (const bool is_byte = tokenizer_.is_byte(id); is_byte != is_run_) {
    ready = end();
    is_run_ = is_byte;
  }
  pending_ += bytes;
  if (is_run_) return ready;
  const auto printable = utf8_printable_prefix(pending_);
  ready.append(pending_, 0, printable);
  pending_.erase(0, printable);
  return ready;
}

std::string GeneratedText::end() {
  auto rest = std::exchange(pending_, {});
  return is_run_ ? text_of_bytes(std::move(rest)) : rest;
}

std::string continuation(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  GeneratedText generated(tokenizer);
  std::string text;
  for (const auto id : ids) text += generated.add(id);
  return text + generated.end();
}

}  // namespace fsdp
