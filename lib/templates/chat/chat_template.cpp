#include "lib/templates/chat/chat_template.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>

#include "lib/base/files/file.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/tokenizers/files/chat_templates.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"

namespace fsdp {
namespace {

struct Named {
  std::string_view name, mark;  ///< the token after an answer; "": the tokenizer's own
  std::string_view source;
};

/// The makers' wording with {% generation %} around answers and their end marks.
constexpr std::array kNamed{
    Named{"chatml", "<|im_end|>",
          "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
          "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
          "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endif %}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    Named{"qwen2", "<|im_end|>",
          "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
          "{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
          "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endif %}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    Named{"qwen2.5", "<|im_end|>",
          "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}"
          "{% endif %}{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
          "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endif %}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    Named{"llama3", "<|eot_id|>",
          "{% set loop_messages = messages %}{% for message in loop_messages %}"
          "{% set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}"
          "{% if loop.index0 == 0 %}{% set head = bos_token + head %}{% endif %}{{ head }}"
          "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}"
          "{% endgeneration %}{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
    Named{"llama2", "",
          "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
          "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
          "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
          "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
          "{% if loop.index0 == 0 and system_message != false %}"
          "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}"
          "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
          "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
          "{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"},
    Named{"mistral", "",
          "{{ bos_token }}{% for message in messages %}"
          "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
          "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}"
          "{% endgeneration %}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
          "{% endif %}{% endfor %}"},
    Named{"gemma", "<end_of_turn>",
          "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
          "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
          "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
          "{% if (message['role'] == 'assistant') %}{{ '<start_of_turn>model\n' }}{% generation %}"
          "{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\n' }}{% else %}"
          "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
          "{% endif %}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"},
    Named{"gemma3", "<end_of_turn>",
          "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
          "{% set first_user_prefix = messages[0]['content'] + '\n\n' %}{% set loop_messages = messages[1:] %}"
          "{% else %}{% set first_user_prefix = '' %}{% set loop_messages = messages %}{% endif %}"
          "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
          "{% if (message['role'] == 'assistant') %}{{ '<start_of_turn>model\n' }}{% generation %}"
          "{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\n' }}{% else %}"
          "{{ '<start_of_turn>' + message['role'] + '\n' + (first_user_prefix if loop.first else '') + "
          "message['content'] | trim + '<end_of_turn>\n' }}"
          "{% endif %}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"}};

/// Templates of a tokenizer.
struct Source {
  std::string text;
  std::filesystem::path file;
  std::optional<NamedTemplate> with_tools = {};
};

/// \param where  the templates' file or folder
std::optional<Source> source_of(const std::vector<NamedTemplate>& templates, const std::string& where) {
  if (templates.empty()) return {};
  const auto find = [&](std::string_view name) {
    return std::find_if(templates.begin(), templates.end(), [&](const auto& one) { return one.name == name; });
  };
  const auto usual = find("default"), with_tools = find("tool_use");
  if (usual == templates.end())
    throw FormatError(where + ": has templates, and none that is called default: name a file with one",
                      Remedy::of_chat_template);
  Source source{usual->text, usual->file};
  if (with_tools != templates.end()) source.with_tools = *with_tools;
  return source;
}

Source read_asked(const std::string& asked) {
  const std::filesystem::path path = asked;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (auto found = source_of(read_chat_templates(path), asked)) return *found;
    throw FormatError(asked + ": has no chat_template.jinja, and no chat_template in tokenizer_config.json");
  }
  if (!std::filesystem::exists(path, ignored)) {
    throw RequestError("'" + asked + "' is neither a file with a chat template nor one of " + chat_template_names(),
                       Remedy::of_chat_template);
  }
  if (path.extension() != ".json") return {read_text_file(path, kMostTemplateBytes), path};
  if (auto found = source_of(chat_templates_in(path), asked)) return *found;
  throw FormatError(asked + ": has no chat_template");
}

const Named* find_named(std::string_view name) {
  const auto* found = std::find_if(kNamed.begin(), kNamed.end(), [&](const Named& one) { return one.name == name; });
  return found == kNamed.end() ? nullptr : found;
}

std::shared_ptr<const ChatTemplate> made(const std::string& name, const Source& source, const std::string& tokenizer) {
  const auto tokens = named_special_tokens(tokenizer);
  const auto now = local_time();
  const auto make = [&](const std::string& of, const std::string& text, const std::filesystem::path& file,
                        std::shared_ptr<const ChatTemplate> with_tools) {
    try {
      return std::make_shared<const ChatTemplate>(of, text, tokens, now, std::move(with_tools));
    } catch (const FormatError& error) {
      throw FormatError(file.string() + ": the chat template is not readable: " + error.what());
    }
  };
  const auto& tools = source.with_tools;
  return make(name, source.text, source.file, tools ? make(tools->name, tools->text, tools->file, {}) : nullptr);
}

/// The templates whose mark after an answer is a token of this tokenizer; all where it cannot be opened.
std::string writable_names(const std::string& tokenizer) try {
  const auto opened = open_tokenizer(tokenizer);
  const auto tokens = named_special_tokens(tokenizer);
  const auto own = tokens.find("eos_token");
  const std::string end = own == tokens.end() ? "</s>" : own->second;
  std::string names;
  for (const auto& named : kNamed) {
    if (opened->named_id(named.mark.empty() ? std::string_view(end) : named.mark))
      names += std::string(named.name) + ", ";
  }
  return names + (names.empty() ? "a file" : "or a file");
} catch (const Error&) {
  return chat_template_names() + ", or a file";
}

}  // namespace

std::string chat_template_names() {
  std::string names;
  for (const auto& named : kNamed) names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

bool is_chat_template_name(std::string_view name) { return find_named(name) != nullptr; }

std::tm local_time() {
  const auto now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

ChatTemplate::ChatTemplate(std::string name, std::string source, std::map<std::string, std::string> tokens,
                           const std::tm& now, std::shared_ptr<const ChatTemplate> with_tools)
    : name_(std::move(name)),
      source_(std::move(source)),
      tokens_(std::move(tokens)),
      jinja_(source_),
      now_(now),
      with_tools_(std::move(with_tools)),
      reads_parts_(finds_parts()) {}

std::string ChatTemplate::title() const {
  return name_ == kOwnTemplate ? "the tokenizer's chat template" : "the chat template '" + name_ + "'";
}

bool ChatTemplate::mentions(std::string_view word) const {
  const auto is_part = [&](std::size_t at) {
    return at < source_.size() && (std::isalnum(static_cast<unsigned char>(source_[at])) != 0 || source_[at] == '_');
  };
  for (auto at = source_.find(word); at != std::string::npos; at = source_.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

const ChatTemplate& ChatTemplate::for_conversation(const Conversation& conversation) const {
  const auto& variables = conversation.variables;
  const bool has_tools = variables.is_object() && variables.contains("tools") && !variables["tools"].is_null();
  return has_tools && with_tools_ ? *with_tools_ : *this;
}

JinjaText ChatTemplate::render(const Conversation& conversation, std::size_t count, NextTurn next) const {
  auto variables = nlohmann::ordered_json::object();
  for (const auto& [key, text] : tokens_) variables[key] = text;
  variables["messages"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < std::min(count, conversation.messages.size()); ++i)
    variables["messages"].push_back(conversation.messages[i]);
  for (const auto* key : {"tools", "documents"}) variables[key] = nullptr;
  variables["add_generation_prompt"] = next == NextTurn::assistant;
  if (conversation.variables.is_object()) variables.update(conversation.variables);
  try {
    return jinja_.render(variables, now_);
  } catch (const FormatError& error) {
    throw FormatError(title() + ", " + error.what());
  }
}

/// Tries the template on parts: one that does not know them refuses the list, or prints it.
bool ChatTemplate::finds_parts() const {
  const std::string text = "parts are read";
  Conversation conversation;
  const nlohmann::ordered_json part{{"type", "text"}, {"text", text}};
  const nlohmann::ordered_json message{{"role", "user"}, {"content", nlohmann::ordered_json::array({part})}};
  conversation.messages = nlohmann::ordered_json::array({message});
  try {
    const auto found = render(conversation, 1, NextTurn::none).text;
    return found.find(text) != std::string::npos && found.find("'" + text) == std::string::npos;
  } catch (const FormatError&) {
    return false;
  }
}

std::string chat_template_source(const std::string& asked) {
  if (const auto* named = find_named(asked)) return std::string(named->source);
  auto source = read_asked(asked);
  if (!is_utf8(source.text)) throw FormatError(source.file.string() + ": is not UTF-8");
  return source.text;
}

std::shared_ptr<const ChatTemplate> find_chat_template(const std::string& asked, const std::string& tokenizer,
                                                       const std::string& of_model) {
  if (const auto* named = find_named(asked)) {
    auto tokens = named_special_tokens(tokenizer);
    const auto config = tokenizer == kBuiltInTokenizer ? TokenizerConfig() : read_tokenizer_config(tokenizer);
    const bool gemma = asked.starts_with("gemma");
    if (!config.is_null("bos_token"))
      tokens.try_emplace("bos_token", asked == "llama3" ? "<|begin_of_text|>" : gemma ? "<bos>" : "<s>");
    if (!config.is_null("eos_token")) tokens.try_emplace("eos_token", "</s>");
    return std::make_shared<ChatTemplate>(asked, std::string(named->source), std::move(tokens));
  }
  if (!asked.empty() && asked != "auto" && asked != kOwnTemplate) return made(asked, read_asked(asked), tokenizer);
  if (!of_model.empty() && asked != kOwnTemplate) return made("of the model", {of_model, "the model"}, tokenizer);
  const auto own = tokenizer == kBuiltInTokenizer ? std::nullopt : source_of(read_chat_templates(tokenizer), tokenizer);
  if (own) return made(kOwnTemplate, *own, tokenizer);
  throw RequestError(
      "the tokenizer (" + tokenizer + ") has no chat template of its own",
      {tokenizer == kBuiltInTokenizer ? Remedy::forgot_model : Remedy::name_template, writable_names(tokenizer)});
}

}  // namespace fsdp
