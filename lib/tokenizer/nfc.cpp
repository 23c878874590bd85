#include "lib/tokenizer/nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "lib/tokenizer/utf8.hpp"

namespace fsdp {

std::string to_nfc(std::string_view text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text);
  utf8proc_uint8_t* composed = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(composed, &std::free);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (length < 0) return std::string(text);
  return {reinterpret_cast<const char*>(composed), static_cast<std::size_t>(length)};
}

namespace {

/// Of the first character and the marks that combine with it: they change places among each other, and are composed
/// together however many there are.
std::size_t segment_length(std::string_view text) {
  std::size_t length = std::max<std::size_t>(1, utf8_character_length(text));
  while (length < text.size()) {
    utf8proc_int32_t character = -1;
    const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + length,
                                        static_cast<utf8proc_ssize_t>(text.size() - length), &character);
    if (bytes <= 0 || utf8proc_get_property(character)->combining_class == 0) break;
    length += static_cast<std::size_t>(bytes);
  }
  return length;
}

}  // namespace

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
    if (together == cluster + alone) {  // what comes next leaves the cluster as it is
      close();
      cluster = alone;
    } else {
      cluster = together;
    }
    range.end += segment.size();
  }
  close();
  // Not the same where to_nfc() gave up on a part that is no UTF-8: then any byte may come from anywhere.
  if (sources.size() != composed.size()) sources.assign(composed.size(), {0, text.size()});
  return sources;
}

}  // namespace fsdp
