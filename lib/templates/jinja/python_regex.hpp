#pragma once
// Regular expressions with the meaning that they have in Python's module re, for texts.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// A pattern of Python 3.12, run by PCRE2. Immutable: any number of threads may use it.
class PythonRegex {
 public:
  /// \param where  names the pattern in errors: "regex_pattern"
  /// \throws FormatError naming what is no pattern, or means something else here than in Python
  PythonRegex(std::string_view pattern, std::string where);
  ~PythonRegex();
  PythonRegex(PythonRegex&&) noexcept;
  PythonRegex& operator=(PythonRegex&&) noexcept;

  /// findall(): of each match its groups, "" for one that took no part; without groups the match itself.
  /// \param text  UTF-8
  /// \throws FormatError when `text` is no UTF-8, or the search takes too many steps
  std::vector<std::vector<std::string>> find_all(std::string_view text) const;
  /// sub(). \param replacement  with \1, \g<1>, \g<name> \param most  matches to replace; 0: all
  /// \throws as find_all(), and when `replacement` names a group that is not there
  std::string replace(std::string_view text, std::string_view replacement, std::int64_t most = 0) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace fsdp
