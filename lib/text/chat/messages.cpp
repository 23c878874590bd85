#include "lib/text/chat/messages.hpp"

#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

/// Keys of messages in some data sets that no supported template writes.
constexpr std::array kUnsaid{"tool_calls", "function_call", "tool_call_id", "tools",  "reasoning_content",
                             "reasoning",  "thinking",      "images",       "image",  "audio",
                             "audios",     "videos",        "video",        "refusal"};
/// Keys by which other programs mark targets.
constexpr std::array kOtherWeights{"train", "train_detail", "training"};

/// Describes a value that stands in place of an expected one.
std::string described(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a truth value";
  if (value.is_number()) return "a number";
  return value.is_array() ? "a list" : "an object";
}

bool says_something(const nlohmann::json& value) {
  return !value.is_null() && !(value.is_structured() && value.empty()) && value != "";
}

class MessageReader {
 public:
  MessageReader(const nlohmann::json& message, std::string where) : message_(message), where_(std::move(where)) {}

  ChatMessage read() const {
    if (!message_.is_object()) fail("is " + described(message_) + ", expected an object with role and content");
    for (const auto* key : kUnsaid) {
      if (message_.contains(key) && says_something(message_[key]))
        fail("has '" + std::string(key) +
             "', which the chat templates here do not write; leave such conversations out");
    }
    for (const auto* key : kOtherWeights) {
      if (message_.contains(key) && !message_[key].is_null() && message_[key] != true)
        fail("has '" + std::string(key) + "', which is not read: \"weight\": 0 says that a message is not learned");
    }
    return {role(), content(), counts()};
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw FormatError(where_ + " " + problem); }

  const nlohmann::json& member(const char* key) const {
    const auto found = message_.find(key);
    if (found == message_.end()) {
      const bool share_gpt = message_.contains("from") && message_.contains("value");
      fail("has no '" + std::string(key) + "'" +
           (share_gpt ? " but 'from' and 'value': rename these to role (system, user, assistant) and content" : ""));
    }
    return *found;
  }

  std::string role() const {
    const auto& value = member("role");
    if (!value.is_string()) fail("has a role that is " + described(value) + ", expected a string");
    return value;
  }

  std::string content() const {
    const auto& value = member("content");
    if (value.is_string()) return value;
    if (!value.is_array()) fail("has a content that is " + described(value) + ", expected a string");
    if (value.size() != 1) {
      fail("has a content of " + std::to_string(value.size()) +
           " parts, expected a string or one part of type text: join them as the model is to read them");
    }
    const auto& part = value.front();
    if (!part.is_object() || part.value("type", nlohmann::json()) != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      fail("has a content whose part is no text; images and other parts cannot be read");
    }
    return part["text"];
  }

  bool counts() const {
    const auto found = message_.find("weight");
    if (found == message_.end() || found->is_null()) return true;
    if (!found->is_number() || (*found != 0 && *found != 1)) fail("has a weight other than 0 and 1");
    return *found == 1;
  }

  const nlohmann::json& message_;
  std::string where_;
};

}  // namespace

void refuse_unsaid(const nlohmann::json& record) {
  for (const auto* key : kUnsaidBeside) {
    if (const auto found = record.find(key); found != record.end() && says_something(*found))
      throw FormatError("has '" + std::string(key) +
                        "', which the chat templates here do not write; leave such conversations out");
  }
}

std::vector<ChatMessage> read_messages(const nlohmann::json& list, const std::string& field) {
  if (!list.is_array()) throw FormatError("'" + field + "' holds " + described(list) + ", expected a list of messages");
  if (list.empty()) throw FormatError("'" + field + "' holds no message");
  std::vector<ChatMessage> messages;
  messages.reserve(list.size());
  for (const auto& message : list)
    messages.push_back(MessageReader(message, "message " + std::to_string(messages.size() + 1)).read());
  return messages;
}

}  // namespace fsdp
