#pragma once
// Renders conversations as text with the chat templates that many models share, selected by name.
//
// Source: the templates (chat_template, in Jinja) of the models' tokenizers.
#include <cstdint>
#include <filesystem>
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

/// A template with the texts of the tokenizer's bos_token and eos_token, which it writes.
struct ChatTemplate {
  ChatFormat format = ChatFormat::chatml;
  std::string bos;
  std::string eos;
};

/// Names of the tokens that mark the template's turns; the vocabulary must have all of them.
std::vector<std::string> marks_of(const ChatTemplate& chat);

struct RenderedChat {
  std::string text;
  std::vector<TextRange> contents;  ///< byte ranges of the messages' contents; the template wrote the rest
  std::vector<TextRange> answers;   ///< byte ranges of the assistant's turns to train on, each with its end mark
};

/// The token that ends an assistant's turn.
std::string end_mark_of(const ChatTemplate& chat);

/// Whether the header of the next turn is written after the conversation.
enum class NextTurn : std::uint8_t {
  none,
  assistant  ///< the header of an answer follows (Jinja's add_generation_prompt); Llama 2 and Mistral have none
};

/// Renders a conversation with the template.
/// \throws FormatError saying which message has no place in the template: a role that it does not know or that does not
///         alternate, a system message where it has none
RenderedChat render_chat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                         NextTurn next = NextTurn::none);

/// `text` without white space at both ends, as Python's str.strip() and Jinja's `trim` remove it.
std::string_view python_strip(std::string_view text);

// Chat templates are programs in Jinja. None is run here: their texts are compared with known ones.

/// Returns the format of a template, if its text is one of the known texts, byte by byte except for line ends (CRLF)
/// and a last one. Texts are compared by FNV-1a of 128 bits.
std::optional<ChatFormat> recognise_template(std::string_view text);

/// The template for `tokenizer`'s conversations.
/// \param asked      a format's name, a file (Jinja, or tokenizer_config.json) or a directory with either; empty or
///                   "auto": the tokenizer's own
/// \param tokenizer  kBuiltInTokenizer or a directory: chat_template.jinja, else chat_template in
///                   tokenizer_config.json (of several the one called default). bos_token and eos_token come from
///                   there, too
/// \throws UsageError when there is none, or `asked` is neither a name nor a file; FormatError naming the file and what
///         the template begins with when it is none of the known ones; IoError
ChatTemplate find_chat_template(const std::string& asked, const std::string& tokenizer);

}  // namespace fsdp
