#include "lib/training/evaluate/chat_prompt.hpp"

#include <utility>
#include <vector>

#include "lib/text/chat/conversation_encoder.hpp"
#include "lib/text/chat/known_templates.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends) {
  ConversationRules rules;
  rules.chat = find_chat_template(options.chat_template, tokenizer_name);
  rules.marks = options.marks;
  const ConversationEncoder encoder(tokenizer, std::move(rules));
  std::vector<ChatMessage> messages;
  if (!question.system.empty()) messages.push_back({"system", question.system});
  messages.push_back({"user", question.user});
  Prompt prompt{question.user, question.user + "\n", encoder.encode_prompt(messages), std::move(ends)};
  prompt.ends.push_back(encoder.turn_end());
  if (const auto eos = tokenizer.eos_id()) prompt.ends.push_back(*eos);
  return prompt;
}

}  // namespace fsdp
