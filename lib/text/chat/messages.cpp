#include "lib/text/chat/messages.hpp"

#include <algorithm>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kMedia{"images", "image", "audio", "audios", "videos", "video"};
/// Keys by which other programs mark targets.
constexpr std::array kOtherWeights{"train", "train_detail", "training"};
/// Keys of what a message thinks, the best known first.
constexpr std::array kReasoning{"reasoning_content", "thinking", "reasoning"};

/// Describes a value that stands in place of an expected one.
std::string described(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a truth value";
  if (value.is_number()) return "a number";
  return value.is_array() ? "a list" : "an object";
}

class MessageReader {
 public:
  MessageReader(const Json& message, std::size_t number)
      : message_(message), where_("message " + std::to_string(number)) {}

  /// \return whether the loss counts the message
  bool check() const {
    if (!message_.is_object()) fail("is " + described(message_) + ", expected an object with role and content");
    for (const auto* key : kMedia) {
      if (message_.contains(key) && says_something(message_[key]))
        fail("has '" + std::string(key) + "', which no text can express; leave such conversations out");
    }
    for (const auto* key : kOtherWeights) {
      if (message_.contains(key) && !message_[key].is_null() && message_[key] != true)
        fail("has '" + std::string(key) + "', which is not read: \"weight\": 0 says that a message is not learned");
    }
    check_role();
    check_content();
    return counts() && message_["role"] == "assistant";
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw FormatError(where_ + " " + problem); }

  void check_role() const {
    const auto found = message_.find("role");
    if (found == message_.end()) fail("has no 'role'");
    if (!found->is_string()) fail("has a role that is " + described(*found) + ", expected a string");
  }

  void check_content() const {
    const auto found = message_.find("content");
    const bool says_more = std::any_of(message_.begin(), message_.end(), [&](const Json& value) {
      return &value != &message_["role"] && says_something(value);
    });
    if (found == message_.end() || found->is_null()) {
      if (says_more) return;  // a call of a tool
      fail(found == message_.end() ? "has no 'content'" : "has a content that is null, expected a string");
    }
    if (found->is_string()) return;
    if (!found->is_array()) fail("has a content that is " + described(*found) + ", expected a string");
    for (const auto& part : *found) {
      if (part.is_object() && part.contains("type") && part["type"] == "text" && part.contains("text") &&
          part["text"].is_string())
        continue;
      fail("has a content whose part is no text; images and other parts cannot be read");
    }
  }

  bool counts() const {
    const auto found = message_.find("weight");
    if (found == message_.end() || found->is_null()) return true;
    if (!found->is_number() || (*found != 0 && *found != 1)) fail("has a weight other than 0 and 1");
    return *found == 1;
  }

  const Json& message_;
  std::string where_;
};

/// A message as ShareGPT has it, with the keys of others. \throws FormatError when a call of a function is no JSON
Json from_share_gpt(const Json& message) {
  if (!message.is_object() || message.contains("role") || !message.contains("from") || !message.contains("value"))
    return message;
  constexpr std::array<std::array<const char*, 2>, 10> kFromRoles{{{"human", "user"},
                                                                   {"gpt", "assistant"},
                                                                   {"chatgpt", "assistant"},
                                                                   {"bing", "assistant"},
                                                                   {"bard", "assistant"},
                                                                   {"model", "assistant"},
                                                                   {"observation", "tool"},
                                                                   {"function_response", "tool"},
                                                                   {"tool_response", "tool"},
                                                                   {"function_call", "assistant"}}};
  auto made = Json{{"role", message["from"]}, {"content", message["value"]}};
  for (const auto& [from, role] : kFromRoles) {
    if (message["from"] == from) made["role"] = role;
  }
  if (message["from"] == "function_call" && message["value"].is_string()) {
    const auto call = Json::parse(message["value"].get_ref<const std::string&>(), nullptr, false);
    if (call.is_discarded()) throw FormatError("has a 'function_call' that is no JSON");
    made.erase("content");
    made["tool_calls"] = Json::array();
    for (const auto& one : call.is_array() ? call : Json::array({call}))
      made["tool_calls"].push_back(Json{{"type", "function"}, {"function", one}});
  }
  for (const auto& [key, value] : message.items()) {
    if (key != "from" && key != "value") made[key] = value;
  }
  return made;
}

Json message_of(const char* role, const Json& content) { return Json{{"role", role}, {"content", content}}; }

/// The messages of a sample in Alpaca's layout.
Json from_alpaca(const Json& record) {
  const auto text = [&](const Json& value, const std::string& key) -> const std::string& {
    if (value.is_string()) return value.get_ref<const std::string&>();
    throw FormatError("'" + key + "' holds " + described(value) + ", expected a string");
  };
  auto messages = Json::array();
  if (const auto history = record.find("history"); history != record.end() && says_something(*history)) {
    for (const auto& turn : *history) {
      if (!turn.is_array() || turn.size() != 2) throw FormatError("'history' holds something else than pairs of texts");
      messages.push_back(message_of("user", text(turn[0], "history")));
      messages.push_back(message_of("assistant", text(turn[1], "history")));
    }
  }
  auto question = text(record["instruction"], "instruction");
  if (const auto input = record.find("input"); input != record.end() && says_something(*input))
    question += "\n" + text(*input, "input");
  messages.push_back(message_of("user", question));
  messages.push_back(message_of("assistant", text(record["output"], "output")));
  return messages;
}

/// The list of messages of a sample in any layout. \return null when it has none
Json messages_of(const Json& record, const std::string& field) {
  auto found = record.find(field);
  const bool other = found == record.end() && field == "messages";
  if (other) found = record.find(kShareGptField);
  if (found == record.end()) {
    const bool alpaca = other && record.contains(kAlpacaKeys[0]) && record.contains(kAlpacaKeys[1]);
    if (!alpaca) throw FormatError("has no '" + field + "'");
  } else if (!found->is_array()) {
    throw FormatError("'" + field + "' holds " + described(*found) + ", expected a list of messages");
  } else if (found->empty()) {
    throw FormatError("'" + field + "' holds no message");
  }
  auto messages = found == record.end() ? from_alpaca(record) : Json::array();
  if (found != record.end()) {
    for (const auto& message : *found) messages.push_back(from_share_gpt(message));
  }
  const auto system = record.find("system");
  const bool is_new = other && system != record.end() && system->is_string() && says_something(*system) &&
                      !(messages.front().is_object() && messages.front().value("role", Json()) == "system");
  if (is_new) messages.insert(messages.begin(), message_of("system", *system));
  return messages;
}

/// The sample's tools, which many data sets hold as JSON in a string.
Json tools_of(const Json& record) {
  const auto found = record.find("tools");
  if (found == record.end() || !says_something(*found)) return nullptr;
  const auto tools = found->is_string() ? Json::parse(found->get_ref<const std::string&>(), nullptr, false) : *found;
  if (!tools.is_array()) throw FormatError("'tools' holds " + described(*found) + ", expected a list of tools");
  return tools.empty() ? Json() : tools;
}

}  // namespace

bool says_something(const nlohmann::ordered_json& value) {
  return !value.is_null() && !(value.is_structured() && value.empty()) && value != "";
}

void refuse_unsaid(const nlohmann::ordered_json& record) {
  for (const auto* key : kUnsaidBeside) {
    if (const auto found = record.find(key); found != record.end() && says_something(*found)) {
      throw FormatError("has '" + std::string(key) +
                        "', which no chat template here writes; leave such "
                        "conversations out");
    }
  }
}

Conversation read_conversation(const nlohmann::ordered_json& record, const std::string& field) {
  refuse_unsaid(record);
  const auto messages = messages_of(record, field);
  Conversation conversation;
  for (const auto& message : messages)
    conversation.is_answer.push_back(MessageReader(message, conversation.is_answer.size() + 1).check());
  conversation.messages = as_templates_read(messages);
  conversation.variables["tools"] = tools_of(record);
  if (const auto more = record.find("chat_template_kwargs"); more != record.end() && says_something(*more)) {
    if (!more->is_object())
      throw FormatError("'chat_template_kwargs' holds " + described(*more) + ", expected an object");
    conversation.variables.update(*more);
  }
  return conversation;
}

nlohmann::ordered_json as_templates_read(const nlohmann::ordered_json& messages) {
  auto read = Json::array();
  for (const auto& message : messages) {
    auto kept = Json::object();
    for (const auto* key : kReasoning) {
      if (kept.empty() && message.contains(key) && !message[key].is_null()) kept["thinking"] = message[key];
    }
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null() && key != "weight") kept[key] = value;
    }
    for (const auto* key : kReasoning) {
      if (!message.contains(key) || message[key].is_null()) continue;
      kept["reasoning_content"] = message[key];
      break;
    }
    read.push_back(std::move(kept));
  }
  return read;
}

}  // namespace fsdp
