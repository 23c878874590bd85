#pragma once
// The text of ids as they are generated.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/tokenizers/vocabulary/generated_text.hpp"

namespace fsdp {

/// Turns ids into text one by one: the same text as of all at once. What can be shown never ends within a character,
/// and never has a part of a stop text, which may begin and end within tokens.
class WrittenText {
 public:
  /// \param tokenizer  must outlive this object
  /// \param stops      texts that end the text and do not belong to it; none of them is empty
  WrittenText(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : generated_(tokenizer), stops_(std::move(stops)) {}

  /// Takes the next id; one that the tokenizer does not have (a model may have more) adds nothing.
  /// \return what can be shown in addition
  std::string add(std::int32_t id);
  /// Returns what was held back, at the end of the text.
  std::string rest();
  /// True once a stop text was found: the text ends before it.
  bool is_stopped() const { return stopped_; }
  /// All that add() and rest() returned.
  const std::string& text() const { return text_; }

 private:
  std::string show(std::size_t bytes);
  std::string take(const std::string& text);

  GeneratedText generated_;
  std::vector<std::string> stops_;
  std::string text_, pending_;
  bool stopped_ = false;
};

/// For JSON, which is UTF-8: what a model writes need not be, and is replaced where it is not.
nlohmann::json json_text(const std::string& text);

}  // namespace fsdp
