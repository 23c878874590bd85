#pragma once
// A question as a model of conversations sees it.
#include <string>

#include "lib/text/chat/conversation_options.hpp"
#include "lib/training/evaluate/generate_text.hpp"

namespace fsdp {

struct ChatQuestion {
  std::string user;    ///< what the user says
  std::string system;  ///< what the system says before; empty: nothing
};

/// The question by the chat template, up to where the assistant's answer begins; that ends with its turn or the text,
/// or by one of `ends`.
/// \param tokenizer_name  "gpt2" or the directory that the tokenizer came from
/// \param ends            of the model: generation_ends()
/// \throws what find_chat_template() and encoding throw
Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends);

}  // namespace fsdp
