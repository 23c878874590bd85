#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/unicode/code_points.hpp"

namespace fsdp {

/// Which parts of a text are words: matches of the pattern, the parts between them, or both ("Isolated" in Hugging
/// Face's tokenizers). Other parts are dropped.
enum class SplitKeeps : std::uint8_t { all, matches, gaps };

/// A regular expression that splits a text into words. Characters have the properties of unicode_tables.hpp, whatever
/// Unicode version the host's PCRE2 has. Immutable.
class SplitPattern {
 public:
  /// \param pattern  in Oniguruma's syntax, as in tokenizer.json. Only constructs that PCRE2 reads alike
  /// \param where    names the pattern in errors
  /// \throws FormatError naming the first unsupported construct and its place
  explicit SplitPattern(std::string_view pattern, const std::string& where = "the pattern",
                        SplitKeeps keeps = SplitKeeps::all);
  /// Matches one of these characters, or a run of them.
  explicit SplitPattern(const CodePoints& characters, bool runs);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Appends the words of `text`, which must be valid UTF-8, to `words`: views into it in order, none empty.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
  SplitKeeps keeps_;
};

/// Returns a pattern in Oniguruma's syntax that matches exactly `text`.
std::string literal_pattern(std::string_view text);

}  // namespace fsdp
