#include "lib/templates/chat/messages.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kMedia{"images", "image", "audio", "audios", "videos", "video"};
/// Keys by which programs say whether an answer is learned: false or 0 where it is not.
constexpr std::array kLossKeys{"weight",     "loss",      "loss_mask", "loss_weight",
                               "loss_scale", "trainable", "train",     "training"};
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
    if (message_.contains("train_detail") && says_something(message_["train_detail"]))
      fail("has 'train_detail', which is not read: \"weight\": 0 says that a whole message is not learned");
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
    const auto items = message_.items();
    const bool says_more = std::any_of(items.begin(), items.end(), [](const auto& item) {
      const bool is_ours = std::find(kLossKeys.begin(), kLossKeys.end(), item.key()) != kLossKeys.end();
      return !is_ours && item.key() != "role" && says_something(item.value());
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
    std::string named;
    bool does = true;
    for (const auto* key : kLossKeys) {
      const auto found = message_.find(key);
      if (found == message_.end() || found->is_null()) continue;
      if (*found != 0 && *found != 1 && !found->is_boolean()) fail("has a " + std::string(key) + " other than 0 and 1");
      const bool counted = *found == 1 || *found == true;
      if (!named.empty() && counted != does) fail("has '" + named + "' and '" + key + "', which contradict each other");
      named = key;
      does = counted;
    }
    return does;
  }

  const Json& message_;
  std::string where_;
};

/// The value that stands as JSON in a string; discarded when it is none. \throws FormatError for half of a character
Json json_in(const std::string& text) {
  const PythonJson json(text);
  try {
    auto value = json.parse();
    if (json.holds_half(value)) throw FormatError(std::string("JSON in a string holds ") + PythonJson::kHalfProblem);
    return value;
  } catch (const nlohmann::json::exception&) {
    return Json(Json::value_t::discarded);
  }
}

/// A message as ShareGPT has it, with the keys of others. \throws FormatError when a call of a function is no JSON
Json from_share_gpt(const Json& message) {
  if (!message.is_object() || message.contains("role") || !message.contains("from") || !message.contains("value"))
    return message;
  constexpr std::array<std::array<const char*, 2>, 8> kFromRoles{{{"human", "user"},
                                                                  {"gpt", "assistant"},
                                                                  {"chatgpt", "assistant"},
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
    const auto call = json_in(message["value"].get_ref<const std::string&>());
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
    question += (question.empty() ? "" : "\n") + text(*input, "input");
  messages.push_back(message_of("user", question));
  messages.push_back(message_of("assistant", text(record["output"], "output")));
  return messages;
}

/// Appends the messages of the list at `field`.
void append_messages(const Json& record, const std::string& field, Json& messages) {
  const auto found = record.find(field);
  if (found == record.end()) throw FormatError("has no '" + field + "'");
  if (!found->is_array())
    throw FormatError("'" + field + "' holds " + described(*found) + ", expected a list of messages");
  if (found->empty()) throw FormatError("'" + field + "' holds no message");
  for (const auto& message : *found) messages.push_back(from_share_gpt(message));
}

/// The key of the list of messages; empty for a sample in Alpaca's layout.
std::string key_of_messages(const Json& record, const std::string& field) {
  if (field != "messages" || record.contains(field)) return field;
  if (record.contains(kShareGptField)) return kShareGptField;
  return record.contains(kAlpacaKeys[0]) && record.contains(kAlpacaKeys[1]) ? "" : field;
}

/// The list of messages of a sample in any layout.
Json messages_of(const Json& record, const std::string& field) {
  const auto key = key_of_messages(record, field);
  if (key.empty()) return from_alpaca(record);
  auto messages = Json::array();
  append_messages(record, key, messages);
  return messages;
}

/// Puts a system message that the record has beside the others before them.
void add_system(const Json& record, Json& messages) {
  const auto found = record.find("system");
  if (found == record.end()) return;
  const auto& system = found->is_array() && found->size() == 1 ? found->front() : *found;
  if (!says_something(system)) return;
  if (!system.is_string()) throw FormatError("'system' holds " + described(*found) + ", expected a string");
  const auto& first = messages.front();
  if (!first.is_object() || first.value("role", Json()) != "system") {
    messages.insert(messages.begin(), message_of("system", system));
  } else if (first.value("content", Json()) != system) {
    throw FormatError("has 'system' and a system message that says something else: which of them is meant is unknown");
  }
}

/// The sample's tools, which many data sets hold as JSON in a string; null for none. A list without tools stays one:
/// templates may ask whether there is a list.
Json tools_of(const Json& record) {
  const auto found = record.find("tools");
  if (found == record.end() || (!found->is_array() && !says_something(*found))) return nullptr;
  auto tools = found->is_string() ? json_in(found->get_ref<const std::string&>()) : *found;
  if (!tools.is_array() && !tools.is_null())
    throw FormatError("'tools' holds " + described(*found) + ", expected a list of tools");
  return tools;
}

/// A conversation of these messages, with what the record has beside them.
Conversation conversation_of(const Json& record, const Json& messages) {
  refuse_unsaid(record);
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

}  // namespace

bool says_something(const nlohmann::ordered_json& value) {
  return !value.is_null() && !(value.is_structured() && value.empty()) && value != "";
}

void refuse_unsaid(const nlohmann::ordered_json& record) {
  const auto says = [&](const char* key) { return record.contains(key) && says_something(record[key]); };
  for (const auto* key : kUnsaidBeside) {
    if (says(key)) {
      throw FormatError("has '" + std::string(key) +
                        "', which no chat template here writes; leave such "
                        "conversations out");
    }
  }
  for (const auto* key : kLossBeside) {
    if (says(key) && record[key] != true && record[key] != 1) {
      throw FormatError("has '" + std::string(key) +
                        "', which is read in messages only: \"weight\": 0 in a message says that it is not learned");
    }
  }
}

Conversation read_conversation(const nlohmann::ordered_json& record, const std::string& field) {
  auto messages = messages_of(record, field);
  add_system(record, messages);
  return conversation_of(record, messages);
}

bool is_message_pair(const nlohmann::ordered_json& record) {
  return record.is_object() && record.contains("prompt") && record["prompt"].is_array() &&
         record.contains("completion") && record["completion"].is_array();
}

Conversation read_message_pair(const nlohmann::ordered_json& record) {
  auto messages = Json::array();
  append_messages(record, "prompt", messages);
  add_system(record, messages);
  const auto prompt = messages.size();
  append_messages(record, "completion", messages);
  auto conversation = conversation_of(record, messages);
  for (std::size_t i = prompt; i < messages.size(); ++i) {
    if (messages[i]["role"] == "assistant" && !conversation.is_answer[i]) {
      throw FormatError("message " + std::to_string(i + 1) +
                        " of prompt and completion is not to be learned, and completions are learned as a whole: give "
                        "such conversations as 'messages'");
    }
    conversation.is_answer[i] = true;
  }
  std::fill_n(conversation.is_answer.begin(), prompt, false);
  return conversation;
}

std::vector<std::string> unread_keys(const nlohmann::ordered_json& record, const std::string& field,
                                     bool is_preference) {
  std::set<std::string_view> read{"tools", "system", "chat_template_kwargs"};
  read.insert(kUnsaidBeside.begin(), kUnsaidBeside.end());
  read.insert(kLossBeside.begin(), kLossBeside.end());
  const auto key = field.empty() ? std::string() : key_of_messages(record, field);
  if (field.empty()) {
    read.insert("prompt");
    if (is_preference) {
      read.insert({"chosen", "rejected"});
    } else {
      read.insert("completion");
    }
  } else if (key.empty()) {
    read.insert(kAlpacaKeys.begin(), kAlpacaKeys.end());
  } else {
    read.insert(key);
  }
  std::vector<std::string> unread;
  for (const auto& [name, value] : record.items())
    if (!read.contains(name)) unread.push_back(name);
  return unread;
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
