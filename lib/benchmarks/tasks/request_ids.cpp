#include "lib/benchmarks/tasks/request_ids.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/types/error.hpp"
#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

std::int32_t prefix_of(const Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos_id()) return *bos;
  if (const auto eos = tokenizer.eos_id()) return *eos;
  throw RequestError("the tokenizer has neither a beginning nor an end mark: nothing can stand before a text");
}

}  // namespace

RequestEncoder::RequestEncoder(const Tokenizer& tokenizer, std::int64_t positions)
    : tokenizer_(tokenizer), positions_(positions), prefix_(prefix_of(tokenizer)) {
  prefix_text_ = tokenizer.decode_one(prefix_);
}

std::vector<std::int32_t> RequestEncoder::encoded(std::string_view text, bool with_marks) const {
  auto ids = tokenizer_.encode_marked(text, {}).ids;
  const bool has_mark = !prefix_text_.empty() && text.starts_with(prefix_text_);
  return with_marks && !has_mark ? tokenizer_.document_marks().around(std::move(ids)) : ids;
}

ScoredIds RequestEncoder::pair(std::string context, std::string continuation) const {
  const bool is_empty = context.empty();
  const auto kept = jinja::strip(context, false, true).size();
  continuation.insert(0, context, kept);
  context.resize(kept);
  ScoredIds pair;
  if (is_empty || (context.empty() && tokenizer_.document_marks().before.empty())) {
    // Nothing is before the text: it is encoded by itself, after one mark.
    pair.context = {prefix_};
    pair.continuation = encoded(continuation, false);
    if (!pair.continuation.empty() && pair.continuation.front() == prefix_)
      pair.continuation.erase(pair.continuation.begin());
  } else {
    pair.context = encoded(context, true);
    const auto whole = encoded(context + continuation, true);
    if (whole.size() > pair.context.size())
      pair.continuation.assign(whole.begin() + std::ssize(pair.context), whole.end());
  }
  if (pair.continuation.empty()) throw FormatError("nothing is left to score: the context's ids hold the whole text");
  const auto length = std::ssize(pair.continuation);
  if (length > positions_) throw FormatError(fmt::format("it has {} ids, and the model takes {}", length, positions_));
  const auto most = static_cast<std::size_t>(positions_ + 1 - length);
  if (pair.context.size() > most) {
    pair.context.erase(pair.context.begin(), pair.context.end() - static_cast<std::ptrdiff_t>(most));
    pair.was_cut = true;
  }
  return pair;
}

std::vector<ScoredIds> RequestEncoder::windows(std::string_view page) const {
  const auto ids = encoded(page, true);
  std::vector<ScoredIds> windows;
  const auto count = std::ssize(ids);
  for (std::int64_t done = 0; done < count;) {
    const auto length = std::min(positions_, count - done), end = done + length;
    ScoredIds window;
    // Inputs are the ids before the last one; a window that is not full begins earlier.
    const auto begin = done == 0 ? 0 : end - positions_ - 1;
    if (done == 0) window.context = {prefix_};
    window.context.insert(window.context.end(), ids.begin() + begin, ids.begin() + done);
    window.continuation.assign(ids.begin() + done, ids.begin() + end);
    windows.push_back(std::move(window));
    done = end;
  }
  return windows;
}

std::vector<std::int32_t> RequestEncoder::prompt(std::string_view text, std::int64_t most, bool& was_cut) const {
  if (most >= positions_)
    throw FormatError(
        fmt::format("max_gen_toks is {}, and the model has {} positions for prompt and answer", most, positions_));
  auto ids = encoded(text, true);
  if (ids.empty()) ids.push_back(prefix_);
  const auto room = positions_ - most;
  was_cut = std::ssize(ids) > room;
  if (was_cut) ids.erase(ids.begin(), ids.end() - room);
  return ids;
}

}  // namespace fsdp
