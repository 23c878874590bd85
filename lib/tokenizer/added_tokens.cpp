#include "lib/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp {

namespace {

/// Ranges are few (the messages of a conversation), and so are the names in a text.
bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const TextRange& range) { return begin < range.end && range.begin < end; });
}

}  // namespace

AddedTokenSearch::AddedTokenSearch(const std::vector<AddedToken>& tokens, const std::string& where,
                                   SpecialNames special)
    : where_(where) {
  for (const AddedToken& token : tokens) {
    if ((token.special && special == SpecialNames::plain) || token.text.empty()) continue;
    if (!token.special && (token.single_word || token.lstrip || token.rstrip)) {
      throw FormatError(where + ": added token '" + token.text +
                        "' is not special and has single_word, lstrip or rstrip, which is not supported");
    }
    (token.normalized ? normalized_ : raw_).add(token);
  }
}

void AddedTokenSearch::Names::add(const AddedToken& token) {
  auto& names = by_first_byte[static_cast<std::uint8_t>(token.text[0])];
  const auto shorter = [&](const Name& name) { return name.text.size() < token.text.size(); };
  const bool supported = !token.single_word && !token.lstrip && !token.rstrip;
  names.insert(std::find_if(names.begin(), names.end(), shorter), Name{token.text, token.id, token.special, supported});
  empty = false;
}

const AddedTokenSearch::Names::Name* AddedTokenSearch::Names::match(std::string_view text, std::size_t at,
                                                                    std::span<const TextRange> plain) const {
  for (const Name& name : by_first_byte[static_cast<std::uint8_t>(text[at])]) {
    if (!text.substr(at).starts_with(name.text)) continue;
    if (name.special && overlaps(plain, at, at + name.text.size())) continue;
    return &name;
  }
  return nullptr;
}

void AddedTokenSearch::Names::split(std::string_view whole, TextRange part, std::span<const TextRange> plain,
                                    std::vector<TextSegment>& segments) const {
  std::size_t begin = part.begin;
  const auto text = whole.substr(0, part.end);
  for (std::size_t at = part.begin; at < part.end && !empty;) {
    const Name* name = match(text, at, plain);
    if (name == nullptr) {
      ++at;
      continue;
    }
    if (!name->supported) throw FormatError("'" + name->text + "' has single_word, lstrip or rstrip");
    if (at > begin) segments.push_back({text.substr(begin, at - begin)});
    segments.push_back({text.substr(at, name->text.size()), name->id});
    begin = at += name->text.size();
  }
  if (begin < part.end) segments.push_back({text.substr(begin)});
}

std::vector<TextSegment> AddedTokenSearch::split(std::string_view text, std::span<const TextRange> plain) const {
  std::vector<TextSegment> raw, all;
  try {
    raw_.split(text, {0, text.size()}, plain, raw);
    for (const TextSegment& segment : raw) {
      if (segment.id == TextSegment::kPlain) {
        const auto begin = static_cast<std::size_t>(segment.text.data() - text.data());
        normalized_.split(text, {begin, begin + segment.text.size()}, plain, all);
      } else {
        all.push_back(segment);
      }
    }
  } catch (const FormatError& error) {
    throw FormatError(where_ + ": added token " + error.what() + ", which is not supported inside texts");
  }
  return all;
}

std::optional<std::int32_t> AddedTokenSearch::find(std::string_view name) const {
  if (name.empty()) return {};
  for (const Names* names : {&raw_, &normalized_}) {
    for (const auto& one : names->by_first_byte[static_cast<std::uint8_t>(name[0])]) {
      if (one.text == name) return one.id;
    }
  }
  return {};
}

}  // namespace fsdp
