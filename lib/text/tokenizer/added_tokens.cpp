#include "lib/text/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "lib/text/tokenizer/character_kinds.hpp"

namespace fsdp {

bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  // Ranges are few (the messages of a conversation), and so are the names in a text.
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const TextRange& range) { return begin < range.end && range.begin < end; });
}

std::int32_t TokenNames::child(std::int32_t node, char byte) const {
  const auto& next = nodes_[static_cast<std::size_t>(node)].next;
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
      auto& next = nodes_[static_cast<std::size_t>(node)].next;
      const std::pair edge(static_cast<std::uint8_t>(byte), below);
      next.insert(std::lower_bound(next.begin(), next.end(), edge), edge);
    }
    node = below;
  }
  const auto first = static_cast<std::uint8_t>(name.at(0));
  by_first_byte_[first] = child(0, name[0]);
  auto& ends = nodes_[static_cast<std::size_t>(node)].name;
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
    const std::int32_t name = nodes_[static_cast<std::size_t>(node)].name;
    if (name != kNone) longest = Match{&names_[static_cast<std::size_t>(name)], length};
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
    // A run of white space is looked through once, however many of the tokens it is made of.
    if (token.lstrip) begin = begin > done ? begin - trailing_space(text.substr(done, begin - done)) : done;
    if (token.rstrip) end = space_end = end < space_end ? space_end : end + leading_space(text.substr(end));
    if (begin >= end) continue;  // a name of white space that the token before has taken
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
