#include "lib/tokenizers/vocabulary/added_tokens.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/unicode/code_points.hpp"

namespace fsdp {
namespace {

// White space and word characters of Unicode: \s and \w of Rust's regex crate.
struct Character {
  std::int32_t code = -1;  ///< -1: none
  std::size_t bytes = 0;
};

Character first_of(std::string_view text) {
  const std::size_t bytes = utf8_character_length(text);
  if (bytes == 0) return {};
  Character character{-1, bytes};
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(bytes),
                   &character.code);
  return character;
}

Character last_of(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(4, text.size()); ++bytes) {
    const auto character = first_of(text.substr(text.size() - bytes));
    if (character.bytes == bytes) return character;
  }
  return {};
}

bool is_space(std::int32_t c) {
  static const auto kSpaces = CodePoints::white_space();
  return c >= 0 && kSpaces.contains(static_cast<char32_t>(c));
}

bool is_word(std::int32_t c) {
  static const auto kWords = CodePoints::word_characters();
  return c >= 0 && kWords.contains(static_cast<char32_t>(c));
}

/// Number of bytes of white space at the beginning of `text`.
std::size_t leading_space(std::string_view text) {
  std::size_t bytes = 0;
  for (auto next = first_of(text); next.bytes > 0 && is_space(next.code); next = first_of(text.substr(bytes)))
    bytes += next.bytes;
  return bytes;
}

/// Number of bytes of white space at the end of `text`.
std::size_t trailing_space(std::string_view text) {
  std::size_t bytes = 0;
  for (auto last = last_of(text); last.bytes > 0 && is_space(last.code);
       last = last_of(text.substr(0, text.size() - bytes)))
    bytes += last.bytes;
  return bytes;
}

bool begins_with_word(std::string_view text) { return is_word(first_of(text).code); }
bool ends_with_word(std::string_view text) { return is_word(last_of(text).code); }

}  // namespace

bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  // A linear search is enough: there are few ranges (the messages of a conversation) and few names in a text.
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const TextRange& range) { return begin < range.end && range.begin < end; });
}

std::int32_t TokenNames::child(std::int32_t node, char byte) const {
  const auto& next = element(nodes_, node).next;
  const auto found = std::lower_bound(next.begin(), next.end(), std::pair(static_cast<std::uint8_t>(byte), kNone));
  return found != next.end() && found->first == static_cast<std::uint8_t>(byte) ? found->second : kNone;
}

void TokenNames::add(const std::string& name, const AddedToken& token, bool is_plain) {
  std::int32_t node = 0;
  for (const char byte : name) {
    std::int32_t below = child(node, byte);
    if (below == kNone) {
      below = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& next = element(nodes_, node).next;
      const std::pair edge(static_cast<std::uint8_t>(byte), below);
      next.insert(std::lower_bound(next.begin(), next.end(), edge), edge);
    }
    node = below;
  }
  const auto first = static_cast<std::uint8_t>(name.at(0));
  by_first_byte_[first] = child(0, name[0]);
  auto& ends = element(nodes_, node).name;
  if (ends != kNone) return;
  ends = static_cast<std::int32_t>(names_.size());
  names_.push_back({token, is_plain});
  empty_ = empty_ && is_plain;
}

std::optional<std::int32_t> TokenNames::find(std::string_view name) const {
  const auto found = match(name);
  if (!found || found->length != name.size() || found->name->is_plain) return {};
  return found->name->token.id;
}

std::optional<TokenNames::Match> TokenNames::match(std::string_view text) const {
  std::optional<Match> longest;
  if (text.empty()) return longest;
  std::int32_t node = by_first_byte_[static_cast<std::uint8_t>(text[0])];
  for (std::size_t length = 1; node != kNone; ++length) {
    const std::int32_t name = element(nodes_, node).name;
    if (name != kNone) longest = Match{&element(names_, name), length};
    node = length < text.size() ? child(node, text[length]) : kNone;
  }
  return longest;
}

std::vector<TextSegment> TokenNames::split(std::string_view text, const PlainTest& is_plain) const {
  std::vector<TextSegment> segments;
  std::size_t done = 0, space_end = 0;
  for (std::size_t at = 0; at < text.size() && !empty_;) {
    const auto found = match(text.substr(at));
    if (!found) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + found->length;
    at = end;
    const AddedToken& token = found->name->token;
    if (found->name->is_plain || (token.special && is_plain && is_plain({begin, end}))) continue;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) continue;
    // A run of white space is searched once, however many tokens it contains.
    if (token.lstrip) begin = begin > done ? begin - trailing_space(text.substr(done, begin - done)) : done;
    if (token.rstrip) end = space_end = end < space_end ? space_end : end + leading_space(text.substr(end));
    if (begin >= end) continue;  // a name of white space inside the white space that the previous token has taken
    if (begin > done) segments.push_back({text.substr(done, begin - done)});
    segments.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done)});
  return segments;
}

AddedTokenSearch::AddedTokenSearch(const std::vector<AddedToken>& tokens, SpecialNames special,
                                   const Normalize& normalize) {
  for (const AddedToken& token : tokens) {
    if (token.text.empty()) continue;
    const bool is_plain = token.special && special == SpecialNames::plain;
    if (!token.normalized) {
      raw_.add(token.text, token, is_plain);
      continue;
    }
    if (const auto name = normalize ? normalize(token.text) : token.text; !name.empty())
      normalized_.add(name, token, is_plain);
    if (!is_plain) normalized_ids_.emplace_back(token.text, token.id);
  }
}

std::optional<std::int32_t> AddedTokenSearch::find(std::string_view name) const {
  if (const auto id = raw_.find(name)) return id;
  for (const auto& [text, id] : normalized_ids_) {
    if (text == name) return id;
  }
  return {};
}

}  // namespace fsdp
