#include "lib/training/evaluate/generate_text.hpp"

#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lib/base/json_text.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/text/chat/conversation_encoder.hpp"
#include "lib/text/chat/known_templates.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

/// Prints tokens as they come, never half a character.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer& tokenizer, bool enabled) : tokenizer_(tokenizer), enabled_(enabled) {}
  void add(std::int32_t id) {
    pending_ += tokenizer_.decode_one(id);
    const auto ready = utf8_printable_prefix(pending_);
    print(pending_.substr(0, ready));
    pending_.erase(0, ready);
  }
  void print(const std::string& text) const {
    if (enabled_) std::cout << text << std::flush;
  }
  void end() const { print(pending_ + "\n"); }

 private:
  const Tokenizer& tokenizer_;
  bool enabled_;
  std::string pending_;
};

}  // namespace

nlohmann::json json_text(const std::string& text) { return parse_json(printable_json(nlohmann::json(text)), "a text"); }

Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends) {
  Prompt prompt{text, text, prompt_ids(tokenizer, text), std::move(ends)};
  if (const auto eos = tokenizer.eos_id()) prompt.ends.push_back(*eos);
  return prompt;
}

void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const Prompt& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report) {
  TextPrinter printer(tokenizer, print && runtime.world().rank() == 0);
  printer.print(prompt.shown);
  const auto ids = generate(runtime, prompt.ids, sampling, [&](std::int32_t id) {
    if (prompt.is_end(id)) return false;
    // A model may have more ids than the tokenizer has pieces.
    if (id < tokenizer.vocab_size()) printer.add(id);
    return true;
  });
  printer.end();
  const bool ended = !ids.empty() && prompt.is_end(ids.back());
  report["prompt"] = json_text(prompt.text);
  report["prompt_tokens"] = prompt.ids;
  report["tokens_generated"] = ids;
  report["text"] = json_text(continuation(tokenizer, std::span(ids).first(ids.size() - (ended ? 1 : 0))));
  report["ended"] = ended ? "eos" : "length";
}

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
