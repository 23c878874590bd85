#include "lib/text/tokenizer/sentencepiece_normalizer.hpp"

#include <algorithm>

#include "lib/base/error.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

// A unit of the trie: its label (bits 0 to 7, and 31 where it holds a value instead), whether a value is among its
// children (bit 8), and how far away these are (bits 10 to 30, in 256 where bit 9 is set).
std::uint32_t label_of(std::uint32_t unit) { return unit & (1u << 31 | 0xFF); }
bool has_value(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }
std::uint32_t value_of(std::uint32_t unit) { return unit & ((1u << 31) - 1); }
std::size_t offset_of(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & 1u << 9) >> 6); }

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

}  // namespace

CharacterMap::CharacterMap(std::string_view bytes, const std::string& file) {
  constexpr std::size_t kHeader = 4;
  const std::size_t trie_bytes = bytes.size() > kHeader ? read_u32(bytes, 0) : 0;
  if (trie_bytes == 0 || trie_bytes % sizeof(std::uint32_t) != 0 || trie_bytes >= bytes.size() - kHeader) {
    throw FormatError(file + ": the normalizer's character map of " + std::to_string(bytes.size()) +
                      " bytes says that its trie has " + std::to_string(trie_bytes) + ": the file is damaged");
  }
  for (std::size_t at = kHeader; at < kHeader + trie_bytes; at += 4) units_.push_back(read_u32(bytes, at));
  results_ = bytes.substr(kHeader + trie_bytes);
  if (results_.back() != '\0')
    throw FormatError(file + ": the normalizer's character map does not end with a zero: the file is damaged");
  check(file);
}

/// Goes everywhere a text can lead to, so that find() need not look where it steps.
void CharacterMap::check(const std::string& file) const {
  const auto refuse = [&](const char* what) {
    throw FormatError(file + ": the normalizer's character map leads outside of its " + what + ": the file is damaged");
  };
  std::vector<bool> seen(units_.size());
  std::vector<std::size_t> open{0};
  seen[0] = true;
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    const std::size_t children = at ^ offset_of(units_[at]);
    if ((children | 0xFF) >= units_.size()) refuse("trie");
    if (has_value(units_[at]) && value_of(units_[children]) >= results_.size()) refuse("results");
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::size_t child = children ^ byte;
      if (label_of(units_[child]) != byte || seen[child]) continue;
      seen[child] = true;
      open.push_back(child);
    }
  }
}

CharacterMap::Rule CharacterMap::find(std::string_view text) const {
  Rule rule;
  std::size_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    at ^= byte;
    const std::uint32_t unit = units_[at];
    if (label_of(unit) != byte) break;
    at ^= offset_of(unit);
    if (has_value(unit)) rule = {i + 1, results_.data() + value_of(units_[at])};
  }
  return rule;
}

SentencePieceNormalizer::SentencePieceNormalizer(const NormalizerSpec& spec, const std::vector<std::string>& symbols,
                                                 const std::string& file)
    : dummy_prefix_(spec.dummy_prefix), removes_(spec.remove_extra_spaces), escapes_(spec.escape_spaces) {
  if (!spec.character_map.empty()) map_.emplace_back(spec.character_map, file);
  if (map_.empty() && !removes_) return;  // they would stay as they are anyway
  for (const auto& symbol : symbols) {
    auto& list = symbols_[static_cast<std::uint8_t>(symbol.at(0))];
    const auto shorter = [&](const std::string& other) { return other.size() < symbol.size(); };
    list.insert(std::find_if(list.begin(), list.end(), shorter), symbol);
  }
}

SentencePieceNormalizer::Step SentencePieceNormalizer::step(std::string_view text) const {
  for (const auto& symbol : symbols_[static_cast<std::uint8_t>(text[0])]) {
    if (text.starts_with(symbol)) return {symbol.size(), text.substr(0, symbol.size())};
  }
  if (!map_.empty()) {
    if (const auto rule = map_.front().find(text); rule.length > 0) return {rule.length, rule.result};
  }
  const std::size_t length = std::max<std::size_t>(1, utf8_character_length(text));
  return {length, text.substr(0, length)};
}

/// Bytes of what becomes spaces at the beginning.
std::size_t SentencePieceNormalizer::skip_spaces(std::string_view text) const {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto next = step(text.substr(at));
    if (next.result != " ") break;
    at += next.length;
  }
  return at;
}

void SentencePieceNormalizer::trim_end(std::string& text) const {
  const std::string_view space = escapes_ ? kSpaceSign : " ";
  while (removes_ && text.ends_with(space)) text.resize(text.size() - space.size());
}

template <typename Add>
void SentencePieceNormalizer::for_parts(std::string_view text, bool dummy_prefix, const Add& add) const {
  const std::string_view space = escapes_ ? kSpaceSign : " ";
  std::size_t at = removes_ ? skip_spaces(text) : 0;
  const bool begins_valid = utf8_character_length(text.substr(at)) > 0;
  if (begins_valid && dummy_prefix && dummy_prefix_) add(space, at);
  bool after_space = removes_;
  while (at < text.size()) {
    auto [length, result] = step(text.substr(at));
    while (after_space && result.starts_with(' ')) result.remove_prefix(1);
    // Ids of single bytes have parts of their own, and so has the first id of what a rule makes.
    for (std::size_t i = 0; i < result.size(); ++i) {
      add(result[i] == ' ' ? space : result.substr(i, 1), at + std::min(i, length - 1));
    }
    if (!result.empty()) after_space = removes_ && result.ends_with(' ');
    at += length;
  }
}

NormalizedText SentencePieceNormalizer::normalize(std::string_view text, bool dummy_prefix) const {
  NormalizedText normalized{"", TextPlaces(text.size())};
  for_parts(text, dummy_prefix, [&](std::string_view bytes, std::size_t origin) {
    normalized.text += bytes;
    normalized.origins.add(origin, bytes.size());
  });
  trim_end(normalized.text);
  normalized.origins.resize(normalized.text.size());
  normalized.origins.add(text.size());
  return normalized;
}

std::string SentencePieceNormalizer::normalized_text(std::string_view text, bool dummy_prefix) const {
  std::string normalized;
  for_parts(text, dummy_prefix, [&](std::string_view bytes, std::size_t) { normalized += bytes; });
  trim_end(normalized);
  return normalized;
}

}  // namespace fsdp
