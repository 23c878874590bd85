#include "lib/text/tokenizer/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>

#include "lib/base/error.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

std::string message_of(int code) {
  std::string text(256, '\0');
  const int length = pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Context = std::unique_ptr<pcre2_match_context, FreeContext>;

/// PCRE2 gives up after ten million steps back, which long runs of white space take; null where that is enough.
Context context_for(std::size_t text_bytes) {
  if (text_bytes < 1'000'000) return {};
  Context context(pcre2_match_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  const std::size_t steps = std::min<std::size_t>(10 * text_bytes, std::numeric_limits<std::uint32_t>::max());
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(steps));
  return context;
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct SplitPattern::Compiled {
  struct Free {
    void operator()(pcre2_code* freed) const { pcre2_code_free(freed); }
  };
  std::unique_ptr<pcre2_code, Free> code;
};

SplitPattern::SplitPattern(const std::string& pattern, SplitKeeps keeps)
    : compiled_(std::make_unique<Compiled>()), keeps_(keeps) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const auto* source = reinterpret_cast<PCRE2_SPTR>(pattern.data());
  compiled_->code.reset(pcre2_compile(source, pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!compiled_->code) {
    throw RuntimeFailure("PCRE2 refuses the pattern '" + pattern + "' at " + std::to_string(offset) + ": " +
                         message_of(error) + "; it must be built with Unicode support");
  }
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, not wrong
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  const Context context = context_for(text.size());
  const auto add = [&](std::size_t begin, std::size_t end, SplitKeeps kind) {
    if (end > begin && (keeps_ == SplitKeeps::all || keeps_ == kind)) words.push_back(text.substr(begin, end - begin));
  };
  std::size_t done = 0, from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size() && !text.empty()) {
    // The caller checked the text: checking all of it again for each word would cost quadratic time.
    std::uint32_t options = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(compiled_->code.get(), subject, text.size(), from, options, match.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;  // which keeps its states on the heap
      found = pcre2_match(compiled_->code.get(), subject, text.size(), from, options, match.get(), context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw RuntimeFailure("cannot split a text into words at byte " + std::to_string(from) + ": " + message_of(found));
    }
    const std::size_t begin = pcre2_get_ovector_pointer(match.get())[0];
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    if (begin == end && last_end == end) {
      // An empty match right after a match is none: go on one character later, as Oniguruma's iteration does.
      from += end < text.size() ? utf8_character_length(text.substr(from)) : 1;
      continue;
    }
    add(done, begin, SplitKeeps::gaps);
    add(begin, end, SplitKeeps::matches);
    done = from = end;
    last_end = end;
  }
  add(done, text.size(), SplitKeeps::gaps);
}

}  // namespace fsdp
