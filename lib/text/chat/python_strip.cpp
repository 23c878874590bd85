#include "lib/text/chat/python_strip.hpp"

#include <algorithm>
#include <array>

namespace fsdp {
namespace {

/// str.isspace() in UTF-8: Unicode's white space and the four separators of ASCII.
constexpr std::array<std::string_view, 29> kSpaces{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

}  // namespace

std::string_view python_strip(std::string_view text) {
  const auto at_start = [&](std::string_view space) { return text.starts_with(space); };
  const auto at_end = [&](std::string_view space) { return text.ends_with(space); };
  for (auto found = kSpaces.begin(); (found = std::find_if(kSpaces.begin(), kSpaces.end(), at_start)) != kSpaces.end();)
    text.remove_prefix(found->size());
  for (auto found = kSpaces.begin(); (found = std::find_if(kSpaces.begin(), kSpaces.end(), at_end)) != kSpaces.end();)
    text.remove_suffix(found->size());
  return text;
}

}  // namespace fsdp
