#pragma once
// Renders conversations as text with a model's chat template, which is a program in Jinja.
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lib/templates/chat/messages.hpp"
#include "lib/templates/jinja/jinja.hpp"

namespace fsdp {

/// "chatml, qwen2, ...": templates that many models share, for tokenizers that bring none.
std::string chat_template_names();
bool is_chat_template_name(std::string_view name);

/// Name of a tokenizer's own template in logs and token files.
inline constexpr const char* kOwnTemplate = "tokenizer";

/// Whether the header of the next turn is written after the conversation.
enum class NextTurn : std::uint8_t {
  none,
  assistant  ///< the header of an answer follows (Jinja's add_generation_prompt)
};

std::tm local_time();

/// Immutable: any number of threads may use one object.
class ChatTemplate {
 public:
  /// \param name    for logs: of chat_template_names(), kOwnTemplate, or the file that was asked for
  /// \param source  the template
  /// \param tokens  texts of the tokenizer's special tokens by the names under which templates read them (bos_token)
  /// \param now     for strftime_now()
  /// \param with_tools  the template for conversations with tools, if it is another one
  /// \throws FormatError naming the line of what is not supported
  ChatTemplate(std::string name, std::string source, std::map<std::string, std::string> tokens,
               const std::tm& now = local_time(), std::shared_ptr<const ChatTemplate> with_tools = {});

  const std::string& name() const { return name_; }
  /// "the chat template 'chatml'", "the tokenizer's chat template"
  std::string title() const;
  /// True when the template says by {% generation %} what the assistant's answers are.
  bool marks_answers() const { return jinja_.has_generation(); }
  /// True when the template has this word.
  bool mentions(std::string_view word) const;
  /// True when the template reads contents that are lists of parts.
  bool reads_parts() const { return reads_parts_; }

  /// nullptr: the template is for conversations with tools as well.
  const ChatTemplate* with_tools() const { return with_tools_.get(); }
  /// This template, or with_tools() for a conversation that has a list of tools.
  const ChatTemplate& for_conversation(const Conversation& conversation) const;

  /// Renders the first `count` messages.
  /// \throws FormatError naming template and line, with the words of a template that refuses the conversation
  JinjaText render(const Conversation& conversation, std::size_t count, NextTurn next) const;

 private:
  bool finds_parts() const;

  std::string name_;
  std::string source_;
  std::map<std::string, std::string> tokens_;
  JinjaTemplate jinja_;
  std::tm now_;
  std::shared_ptr<const ChatTemplate> with_tools_;
  bool reads_parts_;
};

/// The template for conversations with `tokenizer`.
/// \param asked      a name, a file (Jinja, or tokenizer_config.json) or a directory with either; kOwnTemplate: the
///                   tokenizer's own; empty or "auto": the model's, else the tokenizer's own
/// \param tokenizer  kBuiltInTokenizer or a directory: read_chat_templates() of it, of which default and
///                   tool_use are taken. The special tokens' names come from there, too
/// \param of_model   text of the template that the model was trained with; empty: not known
/// \throws RequestError when there is none, or `asked` is neither a name nor a file; FormatError; IoError
std::shared_ptr<const ChatTemplate> find_chat_template(const std::string& asked, const std::string& tokenizer,
                                                       const std::string& of_model = "");

/// The text of the template that `asked` names, as find_chat_template() takes it, but no tokenizer's own.
/// \throws as find_chat_template()
std::string chat_template_source(const std::string& asked);

}  // namespace fsdp
