#include "lib/tokenizer/pre_tokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdexcept>
#include <string>

#include "lib/base/error.hpp"
#include "lib/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

// \s is spelled out as Unicode's White_Space: PCRE2's own \s also takes U+180E, which has not been white space since
// Unicode 6.3. The original ends in \s+(?!\S)|\s+.
#define FSDP_SPACE R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr const char* kPattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" FSDP_SPACE
                                 "\\p{L}\\p{N}]+"
                                 "|[" FSDP_SPACE "]+(?![^" FSDP_SPACE "])|[" FSDP_SPACE "]+";
#undef FSDP_SPACE

std::string message_of(int code) {
  std::string text(256, '\0');
  const int length = pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct Gpt2PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

Gpt2PreTokenizer::Gpt2PreTokenizer() : pattern_(std::make_unique<Pattern>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const auto* pattern = reinterpret_cast<PCRE2_SPTR>(kPattern);
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED;
  pattern_->code.reset(pcre2_compile(pattern, PCRE2_ZERO_TERMINATED, options, &error, &offset, nullptr));
  if (!pattern_->code) {
    throw RuntimeFailure("PCRE2 refuses the GPT-2 pattern at " + std::to_string(offset) + ": " + message_of(error) +
                         "; it must be built with Unicode support");
  }
  pcre2_jit_compile(pattern_->code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, not wrong
}

Gpt2PreTokenizer::~Gpt2PreTokenizer() = default;

std::vector<std::string_view> Gpt2PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_prefix(text);
    split_valid(text.substr(0, valid), words);
    std::size_t end = valid;
    while (end < text.size() && utf8_character_length(text.substr(end)) == 0) ++end;
    if (end > valid) words.push_back(text.substr(valid, end - valid));
    text.remove_prefix(end);
  }
  return words;
}

void Gpt2PreTokenizer::split_valid(std::string_view text, std::vector<std::string_view>& words) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  for (std::size_t at = 0; at < text.size();) {
    // The text was checked above: checking all of it again for each word would cost quadratic time.
    const int found =
        pcre2_match(pattern_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found < 0) {
      throw RuntimeFailure("cannot split a text into words at byte " + std::to_string(at) + ": " + message_of(found));
    }
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    words.push_back(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace fsdp
