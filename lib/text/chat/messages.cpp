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
    if (found == message_.end()) {
      const bool share_gpt = message_.contains("from") && message_.contains("value");
      fail(std::string("has no 'role'") +
           (share_gpt ? " but 'from' and 'value': rename these to role (system, user, assistant) and content" : ""));
    }
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
  const auto found = record.find(field);
  if (found == record.end()) throw FormatError("has no '" + field + "'");
  refuse_unsaid(record);
  if (!found->is_array())
    throw FormatError("'" + field + "' holds " + described(*found) + ", expected a list of messages");
  if (found->empty()) throw FormatError("'" + field + "' holds no message");
  Conversation conversation;
  for (const auto& message : *found)
    conversation.is_answer.push_back(MessageReader(message, conversation.is_answer.size() + 1).check());
  conversation.messages = as_templates_read(*found);
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
