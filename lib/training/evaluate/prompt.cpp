#include "lib/training/evaluate/prompt.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "lib/engine/runtime/model_text.hpp"
#include "lib/templates/chat/chat_template.hpp"

namespace fsdp {
namespace {

ConversationEncoder encoder_of(const Tokenizer& tokenizer, const std::string& tokenizer_name,
                               const ConversationOptions& options) {
  ConversationRules rules;
  rules.chat = find_chat_template(options.chat_template, tokenizer_name, options.model_template);
  rules.marks = options.marks;
  return {tokenizer, std::move(rules)};
}

}  // namespace

Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends) {
  Prompt prompt{text, text, prompt_ids(tokenizer, text), std::move(ends)};
  if (const auto eos = tokenizer.eos_id()) prompt.ends.push_back(*eos);
  return prompt;
}

ChatPrompts::ChatPrompts(const Tokenizer& tokenizer, const std::string& tokenizer_name,
                         const ConversationOptions& options, std::vector<std::int32_t> ends)
    : encoder_(encoder_of(tokenizer, tokenizer_name, options)), ends_(std::move(ends)) {
  if (const auto end = encoder_.turn_end()) ends_.push_back(*end);
  if (const auto eos = tokenizer.eos_id()) ends_.push_back(*eos);
}

Prompt ChatPrompts::question(const ChatQuestion& question) const {
  auto messages = nlohmann::ordered_json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push_back(nlohmann::ordered_json{{"role", role}, {"content", content}});
  };
  if (question.system) add("system", *question.system);
  add("user", question.user);
  return {question.user, question.user + "\n", encoder_.encode_prompt(messages), ends_};
}

Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends) {
  return ChatPrompts(tokenizer, tokenizer_name, options, std::move(ends)).question(question);
}

}  // namespace fsdp
