#pragma once
// A regular expression that cuts a text into words.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Every match is a word, and so is what lies between two matches ("Isolated" in Hugging Face's tokenizers).
class SplitPattern {
 public:
  /// \param pattern  PCRE2's syntax, Unicode
  /// \throws RuntimeFailure when PCRE2 refuses it
  explicit SplitPattern(const std::string& pattern);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Appends the words of `text`, which must be valid UTF-8, to `words`: views that together are all of it, none empty.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace fsdp
