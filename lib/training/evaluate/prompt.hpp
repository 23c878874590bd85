#pragma once
// Texts for a model to continue, and questions as a model of conversations sees them.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/templates/chat/conversation_encoder.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// The text and ids that a model continues.
struct Prompt {
  std::string text;                ///< as the user gave it
  std::string shown;               ///< what stands before the model's text where that is printed
  std::vector<std::int32_t> ids;   ///< of all that the model sees
  std::vector<std::int32_t> ends;  ///< tokens that end its text

  bool is_end(std::int32_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }
};

/// A text that goes on, up to one of `ends` or the tokenizer's end mark.
/// \param ends  of the model: generation_ends()
Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends);

struct ChatQuestion {
  std::string user;                   ///< what the user says
  std::optional<std::string> system;  ///< what the system says before, perhaps ""; nothing: templates may have words
};

/// Writes conversations by the chat template, for an answer to follow.
class ChatPrompts {
 public:
  /// As chat_prompt(). \param tokenizer  must outlive this object
  ChatPrompts(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
              std::vector<std::int32_t> ends);
  Prompt question(const ChatQuestion& question) const;
  const ConversationEncoder& encoder() const { return encoder_; }
  /// Tokens that end an answer.
  const std::vector<std::int32_t>& ends() const { return ends_; }

 private:
  ConversationEncoder encoder_;
  std::vector<std::int32_t> ends_;
};

/// The question by the chat template, up to where the assistant's answer begins; that ends with its turn or the text,
/// or by one of `ends`.
/// \param tokenizer_name  "gpt2" or the directory that the tokenizer came from
/// \param ends            of the model: generation_ends()
/// \throws what find_chat_template() and encoding throw
Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends);

}  // namespace fsdp
