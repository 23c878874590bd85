#pragma once
// Conversations as the text that a model was tuned on: the chat templates that many models share, by name.
//
// Source: the templates (chat_template, in Jinja) of the models' tokenizers; known_templates.hpp tells which texts.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/chat/messages.hpp"
#include "lib/text/tokenizer/added_tokens.hpp"

namespace fsdp {

enum class ChatFormat : std::uint8_t { chatml, qwen2, qwen2_5, llama3, llama2, mistral, gemma, gemma3 };

/// "qwen2.5"
const char* name_of(ChatFormat format);
std::optional<ChatFormat> chat_format(std::string_view name);
/// "chatml, qwen2, ..."
std::string chat_format_names();

/// The names that the tokenizer gives to a text's beginning and end; what a template writes where it says bos_token and
/// eos_token.
struct ChatTemplate {
  ChatFormat format = ChatFormat::chatml;
  std::string bos;
  std::string eos;
};

/// Names of the tokens without which the template's turns have no marks.
std::vector<std::string> marks_of(const ChatTemplate& chat);

struct RenderedChat {
  std::string text;
  std::vector<TextRange> contents;  ///< what the messages brought; all else is the template's
  std::vector<TextRange> answers;   ///< the assistant's turns that count, each with its end mark
};

/// The token that ends an assistant's turn.
std::string end_mark_of(const ChatTemplate& chat);

/// Who is to speak next.
enum class NextTurn : std::uint8_t {
  none,
  assistant  ///< the header of an answer follows (Jinja's add_generation_prompt); Llama 2 and Mistral have none
};

/// Writes a conversation as the template does.
/// \throws FormatError saying which message has no place in the template: a role that it does not know or that does not
///         alternate, a system message where it has none
RenderedChat render_chat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                         NextTurn next = NextTurn::none);

}  // namespace fsdp
