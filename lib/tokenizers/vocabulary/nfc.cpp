#include "lib/tokenizers/vocabulary/nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/unicode/code_points.hpp"

namespace fsdp {
namespace {

constexpr auto kCanonical = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

/// A character before reordering: its canonical decomposition, at most 4 code points.
struct Decomposed {
  std::array<utf8proc_int32_t, 4> characters;
  std::size_t count = 0;
  std::size_t bytes = 0;      ///< bytes of the character in the text
  bool stands_alone = false;  ///< the character is no mark, and joins no other
};

/// True for characters that came after Unicode 9, whose NFC is wanted: it knows of no marks and compositions of them.
bool stands_alone(utf8proc_int32_t character) {
  static const auto kNewer = CodePoints::newer_than_unicode_9();
  return kNewer.contains(static_cast<char32_t>(character));
}

/// \return nothing when the text does not begin with valid UTF-8
std::optional<Decomposed> decompose_first(std::string_view text) {
  Decomposed first;
  utf8proc_int32_t character = -1;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), &character);
  if (bytes <= 0) return {};
  if (stands_alone(character)) return Decomposed{{character}, 1, static_cast<std::size_t>(bytes), true};
  const auto count = utf8proc_decompose_char(
      character, first.characters.data(), static_cast<utf8proc_ssize_t>(first.characters.size()), kCanonical, nullptr);
  if (count < 0 || count > static_cast<utf8proc_ssize_t>(first.characters.size())) return {};
  first.count = static_cast<std::size_t>(count);
  first.bytes = static_cast<std::size_t>(bytes);
  return first;
}

int mark_class(utf8proc_int32_t character) { return utf8proc_get_property(character)->combining_class; }

/// Sorts each run of marks. utf8proc_map() sorts by swapping neighbours, which takes a minute for 100 kB of unsorted
/// marks.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto is_mark = [](utf8proc_int32_t character) { return mark_class(character) != 0; };
  const auto before = [](utf8proc_int32_t a, utf8proc_int32_t b) { return mark_class(a) < mark_class(b); };
  for (auto at = characters.begin(); at != characters.end();) {
    const auto run = std::find_if(at, characters.end(), is_mark);
    at = std::find_if_not(run, characters.end(), is_mark);
    if (!std::is_sorted(run, at, before)) std::stable_sort(run, at, before);
  }
}

/// Moves the characters to the end of `composed`. \return false when there is no memory for it
bool compose(std::vector<utf8proc_int32_t>& characters, std::string& composed) {
  order_marks(characters);
  const auto count =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), kCanonical);
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::max<utf8proc_ssize_t>(count, 0)); ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const auto length = utf8proc_encode_char(characters[i], bytes.data());
    composed.append(bytes.begin(), bytes.begin() + length);
  }
  characters.clear();
  return count >= 0;
}

/// Returns the length of the prefix of characters below U+0300, whose first bytes are below 0xCC: they are composed and
/// no marks.
bool is_surely_composed(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xcc; });
}

/// Length in bytes of the first character with its combining marks. Such a segment is reordered and composed as a
/// whole, however many marks it has.
std::size_t segment_length(std::string_view text) {
  std::size_t length = std::max<std::size_t>(1, utf8_character_length(text));
  while (length < text.size()) {
    // Some characters (U+0F73) are no marks but decompose into marks only.
    const auto next = decompose_first(text.substr(length));
    if (!next || next->count == 0 || next->stands_alone || mark_class(next->characters[0]) == 0) break;
    length += next->bytes;
  }
  return length;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  if (is_surely_composed(text)) return std::string(text);
  std::vector<utf8proc_int32_t> characters;
  std::string composed;
  composed.reserve(text.size());
  for (auto rest = text; !rest.empty();) {
    const auto first = decompose_first(rest);
    if (!first) return std::string(text);
    if (first->stands_alone) {
      if (!compose(characters, composed)) return std::string(text);
      composed += rest.substr(0, first->bytes);
    } else {
      characters.insert(characters.end(), first->characters.begin(), iterator_at(first->characters, first->count));
    }
    rest.remove_prefix(first->bytes);
  }
  return compose(characters, composed) ? composed : std::string(text);
}

std::vector<TextRange> nfc_sources(std::string_view text, std::string_view composed) {
  std::vector<TextRange> sources;
  std::string cluster;  // composed
  TextRange range;
  const auto close = [&] {
    sources.insert(sources.end(), cluster.size(), range);
    range.begin = range.end;
  };
  while (range.end < text.size()) {
    const auto segment = text.substr(range.end, segment_length(text.substr(range.end)));
    const auto alone = to_nfc(segment);
    const auto together = to_nfc(cluster + std::string(segment));
    if (together == cluster + alone) {  // the next character does not combine with the cluster
      close();
      cluster = alone;
    } else {
      cluster = together;
    }
    range.end += segment.size();
  }
  close();
  // The lengths differ when to_nfc() gave up on a part that is not UTF-8: then any byte may come from the whole text.
  if (sources.size() != composed.size()) sources.assign(composed.size(), {0, text.size()});
  return sources;
}

}  // namespace fsdp
