#include "lib/tokenizers/unicode/character_kinds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kCodes = 0x110000, kBlock = 0x100;
constexpr std::size_t kMostKinds = 0xd000;  // signs that UTF-8 can spell

/// A place where a set begins or ends.
struct Edge {
  char32_t code;
  std::size_t set;
};

}  // namespace

CharacterKinds::CharacterKinds(const std::vector<CodePoints>& sets) {
  for (char32_t code = 0; code < 0x80; ++code) {
    auto& members = members_.emplace_back();
    for (const auto& set : sets) members.push_back(set.contains(code));
  }
  std::vector<Edge> edges{{0x80, sets.size()}};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const auto& range : sets[i].ranges()) {
      edges.push_back({range.first, i});
      edges.push_back({range.last + 1, i});
    }
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.code < b.code; });
  std::vector<std::uint16_t> kinds(kCodes);
  for (std::size_t code = 0; code < 0x80; ++code) kinds[code] = static_cast<std::uint16_t>(code);
  std::map<std::vector<bool>, std::uint16_t> known;
  std::vector<bool> members(sets.size() + 1);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    members[edges[i].set].flip();
    const auto end = i + 1 < edges.size() ? edges[i + 1].code : kCodes;
    if (edges[i].code < 0x80 || edges[i].code == end) continue;
    const auto [found, is_new] = known.try_emplace(members, static_cast<std::uint16_t>(members_.size()));
    if (is_new) members_.push_back(members);
    if (members_.size() > kMostKinds) throw FormatError("a pattern tells too many kinds of characters apart");
    std::fill(kinds.begin() + edges[i].code, iterator_at(kinds, end), found->second);
  }
  std::map<std::vector<std::uint16_t>, std::uint32_t> blocks;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto begin = iterator_at(kinds, i * kBlock);
    const std::vector<std::uint16_t> block(begin, begin + kBlock);
    const auto [found, is_new] = blocks.try_emplace(block, static_cast<std::uint32_t>(kinds_.size()));
    if (is_new) kinds_.insert(kinds_.end(), block.begin(), block.end());
    blocks_[i] = found->second;
  }
}

std::string CharacterKinds::class_of(std::size_t set) const {
  std::string text = "[";
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i][set]) continue;
    const auto first = i;
    while (i + 1 < members_.size() && members_[i + 1][set]) ++i;
    text += first == i ? fmt::format("\\x{{{:x}}}", i) : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", first, i);
  }
  return text.size() > 1 ? text + "]" : "(?!)";
}

std::string CharacterKinds::spelled(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  const bool wide = is_wide();
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  for (const auto* const end = at + text.size(); at < end;) {
    const char32_t first = *at++;
    if (first < 0x80) {
      out += static_cast<char>(first);
      continue;
    }
    const int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    char32_t code = first & (0x3fU >> more);
    for (int i = 0; i < more; ++i) code = code << 6 | (*at++ & 0x3fU);
    const auto kind = kind_of(code);
    if (!wide) {
      out += static_cast<char>(kind);
    } else {
      if (kind >= 0x800) out += static_cast<char>(0xe0 | kind >> 12);
      out += static_cast<char>(kind >= 0x800 ? 0x80 | (kind >> 6 & 0x3f) : 0xc0 | kind >> 6);
      out += static_cast<char>(0x80 | (kind & 0x3f));
    }
  }
  return out;
}

}  // namespace fsdp
