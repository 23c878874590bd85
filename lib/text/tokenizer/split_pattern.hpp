#pragma once
// A regular expression that cuts a text into words.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Which parts of a text are words: matches of the pattern, what lies between two of them, or both ("Isolated" in
/// Hugging Face's tokenizers). What is no word is lost.
enum class SplitKeeps : std::uint8_t { all, matches, gaps };

class SplitPattern {
 public:
  /// \param pattern  PCRE2's syntax, Unicode
  /// \throws RuntimeFailure when PCRE2 refuses it
  explicit SplitPattern(const std::string& pattern, SplitKeeps keeps = SplitKeeps::all);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Appends the words of `text`, which must be valid UTF-8, to `words`: views into it in order, none empty.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  SplitKeeps keeps_;
};

}  // namespace fsdp
