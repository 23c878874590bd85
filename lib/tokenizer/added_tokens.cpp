#include "lib/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp {

AddedTokenSearch::AddedTokenSearch(const std::vector<AddedToken>& tokens, const std::string& where) {
  for (const AddedToken& token : tokens) {
    if (token.special || token.text.empty()) continue;
    if (token.single_word || token.lstrip || token.rstrip) {
      throw FormatError(where + ": added token '" + token.text +
                        "' is not special and has single_word, lstrip or rstrip, which is not supported");
    }
    (token.normalized ? normalized_ : raw_).add(token);
  }
}

void AddedTokenSearch::Names::add(const AddedToken& token) {
  auto& names = by_first_byte[static_cast<std::uint8_t>(token.text[0])];
  const auto shorter = [&](const Name& name) { return name.text.size() < token.text.size(); };
  names.insert(std::find_if(names.begin(), names.end(), shorter), Name{token.text, token.id});
  empty = false;
}

const AddedTokenSearch::Names::Name* AddedTokenSearch::Names::match(std::string_view text) const {
  for (const Name& name : by_first_byte[static_cast<std::uint8_t>(text[0])]) {
    if (text.starts_with(name.text)) return &name;
  }
  return nullptr;
}

void AddedTokenSearch::Names::split(std::string_view text, std::vector<TextSegment>& segments) const {
  std::size_t plain = 0;
  for (std::size_t at = 0; at < text.size() && !empty;) {
    const Name* name = match(text.substr(at));
    if (name == nullptr) {
      ++at;
      continue;
    }
    if (at > plain) segments.push_back({text.substr(plain, at - plain)});
    segments.push_back({text.substr(at, name->text.size()), name->id});
    plain = at += name->text.size();
  }
  if (plain < text.size()) segments.push_back({text.substr(plain)});
}

std::vector<TextSegment> AddedTokenSearch::split(std::string_view text) const {
  std::vector<TextSegment> raw, all;
  raw_.split(text, raw);
  for (const TextSegment& segment : raw) {
    if (segment.id == TextSegment::kPlain) {
      normalized_.split(segment.text, all);
    } else {
      all.push_back(segment);
    }
  }
  return all;
}

}  // namespace fsdp
