#include "lib/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "lib/tokenizer/character_kinds.hpp"

namespace fsdp {

bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  // Ranges are few (the messages of a conversation), and so are the names in a text.
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const TextRange& range) { return begin < range.end && range.begin < end; });
}

void TokenNames::add(const std::string& name, const AddedToken& token) {
  auto& names = by_first_byte_[static_cast<std::uint8_t>(name.at(0))];
  const auto shorter = [&](const Name& other) { return other.text.size() < name.size(); };
  names.insert(std::find_if(names.begin(), names.end(), shorter), Name{name, token});
  empty_ = false;
}

std::optional<std::int32_t> TokenNames::find(std::string_view name) const {
  if (name.empty()) return {};
  for (const Name& one : by_first_byte_[static_cast<std::uint8_t>(name[0])]) {
    if (one.text == name) return one.token.id;
  }
  return {};
}

const TokenNames::Name* TokenNames::match(std::string_view text, std::size_t at, const PlainTest& is_plain) const {
  for (const Name& name : by_first_byte_[static_cast<std::uint8_t>(text[at])]) {
    if (!text.substr(at).starts_with(name.text)) continue;
    if (name.token.special && is_plain && is_plain({at, at + name.text.size()})) continue;
    return &name;
  }
  return nullptr;
}

std::vector<TextSegment> TokenNames::split(std::string_view text, const PlainTest& is_plain) const {
  std::vector<TextSegment> segments;
  std::size_t done = 0, space_end = 0;
  for (std::size_t at = 0; at < text.size() && !empty_;) {
    const Name* name = match(text, at, is_plain);
    if (name == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + name->text.size();
    at = end;
    const AddedToken& token = name->token;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) continue;
    // A run of white space is looked through once, however many of the tokens it is made of.
    if (token.lstrip) begin = begin > done ? begin - trailing_space(text.substr(done, begin - done)) : done;
    if (token.rstrip) end = space_end = end < space_end ? space_end : end + leading_space(text.substr(end));
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
    if ((token.special && special == SpecialNames::plain) || token.text.empty()) continue;
    if (!token.normalized) {
      raw_.add(token.text, token);
      continue;
    }
    if (const auto name = normalize ? normalize(token.text) : token.text; !name.empty()) normalized_.add(name, token);
    normalized_ids_.emplace_back(token.text, token.id);
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
