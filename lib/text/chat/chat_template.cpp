#include "lib/text/chat/chat_template.hpp"

#include <algorithm>
#include <array>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

/// UTF-8 of the characters for which Python's str.isspace() holds: Unicode's white space and ASCII's four separators.
constexpr std::array<std::string_view, 29> kSpaces{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

struct Entry {
  ChatFormat format;
  const char* name;
};
constexpr std::array<Entry, 8> kFormats{{{ChatFormat::chatml, "chatml"},
                                         {ChatFormat::qwen2, "qwen2"},
                                         {ChatFormat::qwen2_5, "qwen2.5"},
                                         {ChatFormat::llama3, "llama3"},
                                         {ChatFormat::llama2, "llama2"},
                                         {ChatFormat::mistral, "mistral"},
                                         {ChatFormat::gemma, "gemma"},
                                         {ChatFormat::gemma3, "gemma3"}}};

[[noreturn]] void refuse(std::size_t index, const std::string& problem) {
  throw FormatError("message " + std::to_string(index + 1) + " " + problem);
}

/// A text under construction, with what of it is whose.
class Writer {
 public:
  explicit Writer(const ChatTemplate& chat) : chat_(chat) {}

  RenderedChat write(const std::vector<ChatMessage>& messages, NextTurn next) {
    check_roles(messages);
    switch (chat_.format) {
      case ChatFormat::chatml:
      case ChatFormat::qwen2:
      case ChatFormat::qwen2_5:
        write_chatml(messages);
        break;
      case ChatFormat::llama3:
        write_llama3(messages);
        break;
      case ChatFormat::llama2:
      case ChatFormat::mistral:
        write_instructions(messages);
        break;
      case ChatFormat::gemma:
      case ChatFormat::gemma3:
        write_gemma(messages);
        break;
    }
    if (next == NextTurn::assistant) add(answer_header());
    return std::move(chat_text_);
  }

 private:
  /// A system message may be first; then user and assistant take turns, where the template insists on that.
  void check_roles(const std::vector<ChatMessage>& messages) const {
    const bool alternate = chat_.format >= ChatFormat::llama2;
    const bool takes_system = chat_.format != ChatFormat::mistral && chat_.format != ChatFormat::gemma;
    const std::size_t first = !messages.empty() && messages.front().role == "system" ? 1 : 0;
    const auto quoted = [&] { return "the chat template '" + std::string(name_of(chat_.format)) + "'"; };
    if (first == 1 && !takes_system) refuse(0, "is the system's, for which " + quoted() + " has no place");
    for (std::size_t i = first; i < messages.size(); ++i) {
      const auto& role = messages[i].role;
      if (role != "system" && role != "user" && role != "assistant")
        refuse(i, "has the role '" + role + "', expected system, user or assistant");
      const char* expected = (i - first) % 2 == 0 ? "user" : "assistant";
      if (alternate && role != expected) {
        refuse(i, "has the role '" + role + "' where " + quoted() + " expects '" + expected +
                      "': user and assistant take turns" + (takes_system ? ", after at most one system message" : ""));
      }
    }
  }

  void write_chatml(const std::vector<ChatMessage>& messages) {
    if (chat_.format != ChatFormat::chatml && messages.front().role != "system") {
      const char* author = chat_.format == ChatFormat::qwen2 ? "" : "You are Qwen, created by Alibaba Cloud. ";
      add("<|im_start|>system\n" + std::string(author) + "You are a helpful assistant.<|im_end|>\n");
    }
    for (const auto& message : messages) {
      add("<|im_start|>" + message.role + "\n");
      const auto begin = here();
      add_content(message.content);
      add("<|im_end|>");
      end_turn(message, begin);
      add("\n");
    }
  }

  void write_llama3(const std::vector<ChatMessage>& messages) {
    add(chat_.bos);
    for (const auto& message : messages) {
      add("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n");
      const auto begin = here();
      add_content(python_strip(message.content));
      add("<|eot_id|>");
      end_turn(message, begin);
    }
  }

  /// Llama 2 begins each pair of turns with a mark of its own and trims; Mistral does neither.
  void write_instructions(const std::vector<ChatMessage>& messages) {
    const bool llama2 = chat_.format == ChatFormat::llama2;
    const bool system = messages.front().role == "system";
    if (!llama2) add(chat_.bos);
    for (std::size_t i = system ? 1 : 0; i < messages.size(); ++i) {
      const auto& message = messages[i];
      if (message.role == "user") {
        add((llama2 ? chat_.bos : "") + "[INST] ");
        if (system && i == 1) {
          add_user_with_system(messages.front().content, message.content);
        } else {
          add_content(llama2 ? python_strip(message.content) : message.content);
        }
        add(" [/INST]");
        continue;
      }
      const auto begin = here();
      if (llama2) add(" ");
      add_content(llama2 ? python_strip(message.content) : message.content);
      add((llama2 ? " " : "") + chat_.eos);
      end_turn(message, begin);
    }
  }

  /// The whole is trimmed, of which the mark is the beginning.
  void add_user_with_system(const std::string& system, const std::string& user) {
    add("<<SYS>>\n");
    add_content(system);
    const auto trimmed = python_strip(user);
    if (trimmed.empty()) return add("\n<</SYS>>");
    add("\n<</SYS>>\n\n");
    add_content(
        std::string_view(user).substr(0, static_cast<std::size_t>(trimmed.data() - user.data()) + trimmed.size()));
  }

  void write_gemma(const std::vector<ChatMessage>& messages) {
    add(chat_.bos);
    const bool system = messages.front().role == "system";
    for (std::size_t i = system ? 1 : 0; i < messages.size(); ++i) {
      const auto& message = messages[i];
      add("<start_of_turn>" + std::string(message.role == "assistant" ? "model" : "user") + "\n");
      const auto begin = here();
      if (system && i == 1) {
        add_content(messages.front().content);
        add("\n\n");
      }
      add_content(python_strip(message.content));
      add("<end_of_turn>");
      end_turn(message, begin);
      add("\n");
    }
  }

  const char* answer_header() const {
    switch (chat_.format) {
      case ChatFormat::llama3:
        return "<|start_header_id|>assistant<|end_header_id|>\n\n";
      case ChatFormat::llama2:
      case ChatFormat::mistral:
        return "";
      case ChatFormat::gemma:
      case ChatFormat::gemma3:
        return "<start_of_turn>model\n";
      default:
        return "<|im_start|>assistant\n";
    }
  }

  std::size_t here() const { return chat_text_.text.size(); }
  void add(std::string_view text) { chat_text_.text += text; }
  void add_content(std::string_view text) {
    if (text.empty()) return;
    chat_text_.contents.push_back({here(), here() + text.size()});
    add(text);
  }
  void end_turn(const ChatMessage& message, std::size_t begin) {
    if (message.role == "assistant" && message.counts) chat_text_.answers.push_back({begin, here()});
  }

  const ChatTemplate& chat_;
  RenderedChat chat_text_;
};

}  // namespace

std::string_view python_strip(std::string_view text) {
  const auto at_start = [&](std::string_view space) { return text.starts_with(space); };
  const auto at_end = [&](std::string_view space) { return text.ends_with(space); };
  for (auto found = kSpaces.begin(); (found = std::find_if(kSpaces.begin(), kSpaces.end(), at_start)) != kSpaces.end();)
    text.remove_prefix(found->size());
  for (auto found = kSpaces.begin(); (found = std::find_if(kSpaces.begin(), kSpaces.end(), at_end)) != kSpaces.end();)
    text.remove_suffix(found->size());
  return text;
}

const char* name_of(ChatFormat format) {
  for (const auto& entry : kFormats) {
    if (entry.format == format) return entry.name;
  }
  return "";
}

std::optional<ChatFormat> chat_format(std::string_view name) {
  for (const auto& entry : kFormats) {
    if (entry.name == name) return entry.format;
  }
  return {};
}

std::string chat_format_names() {
  std::string names;
  for (const auto& entry : kFormats) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

std::vector<std::string> marks_of(const ChatTemplate& chat) {
  switch (chat.format) {
    case ChatFormat::llama3:
      return {chat.bos, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    case ChatFormat::llama2:
    case ChatFormat::mistral:
      return {chat.bos, chat.eos};
    case ChatFormat::gemma:
    case ChatFormat::gemma3:
      return {chat.bos, "<start_of_turn>", "<end_of_turn>"};
    default:
      return {"<|im_start|>", "<|im_end|>"};
  }
}

std::string end_mark_of(const ChatTemplate& chat) {
  switch (chat.format) {
    case ChatFormat::llama3:
      return "<|eot_id|>";
    case ChatFormat::llama2:
    case ChatFormat::mistral:
      return chat.eos;
    case ChatFormat::gemma:
    case ChatFormat::gemma3:
      return "<end_of_turn>";
    default:
      return "<|im_end|>";
  }
}

RenderedChat render_chat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, NextTurn next) {
  return Writer(chat).write(messages, next);
}

}  // namespace fsdp
