#pragma once
// Unicode as Hugging Face's tokenizers 0.23.3 knows it, so that token ids depend on no library of the host.
// unicode_tables.cpp is written by make_unicode_tables.py.
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp {

/// Names of the general categories, of two letters.
std::span<const std::string_view> unicode_categories();

/// The general categories of Unicode 16. A run holds its first code point in the bits from 7 on, the index of its
/// category in bits 0 to 4, and two flags. Runs are sorted; each ends where the next begins.
std::span<const std::uint32_t> unicode_runs();
inline constexpr std::uint32_t kUnicodeCategory = 0x1f;
inline constexpr std::uint32_t kAfterUnicode9 = 0x20;   ///< flag: Unicode 9 has no such character
inline constexpr std::uint32_t kPunctuationIn8 = 0x40;  ///< flag: punctuation in Unicode 8
inline constexpr int kUnicodeRunBits = 7;

/// Names of the scripts that patterns may have.
std::span<const std::string_view> unicode_scripts();

/// Characters whose Script, in Unicode 16, is `script`, an index into unicode_scripts(); those shared by several
/// scripts have the Script Common or Inherited and are not here. Sorted.
struct ScriptRun {
  std::uint32_t first, last;
  std::uint8_t script;
};
std::span<const ScriptRun> unicode_script_runs();

}  // namespace fsdp
