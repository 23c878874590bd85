#pragma once
// Chat templates: a bounded interpreter of the part of Jinja that templates of models use. It reads no files, calls no
// other code and changes none of its inputs.
//
// Source: Jinja 3.1 in the environment of transformers 5.23 (utils/chat_template_utils.py): an immutable sandbox with
// trim_blocks, lstrip_blocks, break, continue and {% generation %}. Templates of benchmarks: lm-eval 0.4.13 (utils.py).
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/vocabulary/added_tokens.hpp"

namespace fsdp {

/// How Jinja is set up.
enum class JinjaEnvironment : std::uint8_t {
  chat,   ///< as in transformers: see above
  strict  ///< as in lm-eval 0.4.13: white space stays, what is undefined is an error where it is used, and the filter
          ///< regex_replace(pattern, replacement, count=0) is Python's re.sub()
};

/// The most that one rendering may use. The defaults allow conversations of some 10 MB and end a hostile template after
/// a few seconds.
struct JinjaLimits {
  std::uint64_t steps = 40'000'000;              ///< expressions, statements, items of loops, 32 bytes of a text, ...
  std::uint64_t bytes = std::uint64_t{1} << 28;  ///< of all texts and lists that the template makes
};

struct JinjaText {
  std::string text;
  std::vector<TextRange> marked;  ///< byte ranges that {% generation %} encloses, in order
};

namespace jinja {
class Syntax;
}

/// A template. Immutable: any number of threads may render it.
class JinjaTemplate {
 public:
  /// \throws FormatError naming the line of what is no Jinja or is not supported (blocks, imports, some filters)
  explicit JinjaTemplate(std::string_view source, JinjaEnvironment environment = JinjaEnvironment::chat);
  ~JinjaTemplate();
  JinjaTemplate(const JinjaTemplate&) = delete;
  JinjaTemplate& operator=(const JinjaTemplate&) = delete;

  /// \param variables  an object with the template's variables by name; its texts are UTF-8
  /// \param now        local time, for strftime_now()
  /// \throws FormatError with the words of raise_exception(), or naming the line of what is an error in Jinja, too, or
  ///   exceeds a limit
  JinjaText render(const nlohmann::ordered_json& variables, const std::tm& now, const JinjaLimits& limits = {}) const;

  /// True when the template has {% generation %}.
  bool has_generation() const;

 private:
  std::unique_ptr<const jinja::Syntax> syntax_;
};

}  // namespace fsdp
