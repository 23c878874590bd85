#pragma once
// Reads the messages of a sample: {"role": ..., "content": ...}.
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp {

/// Messages and variables, which a chat template writes.
struct Conversation {
  nlohmann::ordered_json messages;   ///< objects as templates get them from transformers: without keys that are null
  std::vector<bool> is_answer;       ///< by message: the loss counts it
  nlohmann::ordered_json variables;  ///< tools, and what chat_template_kwargs names
};

/// Keys of samples in other layouts than messages.
inline constexpr const char* kShareGptField = "conversations";
inline constexpr std::array kAlpacaKeys{"instruction", "output", "input", "system", "history"};  ///< two are needed

/// Keys beside the messages, or beside prompt and completion, that no text can express.
inline constexpr std::array kUnsaidBeside{"functions", "images", "image", "audio", "audios", "videos", "video"};

/// Keys beside the messages by which other programs say what is learned.
inline constexpr std::array kLossBeside{"loss_mask",  "loss_masks", "loss_weight", "loss_weights",
                                        "loss_scale", "trainable",  "train_detail"};

/// \throws FormatError naming a key that `record` has with a value other than null or empty: one of kUnsaidBeside, or
///   one of kLossBeside that is not true or 1, either
void refuse_unsaid(const nlohmann::ordered_json& record);

/// False for null, "", [] and {}.
bool says_something(const nlohmann::ordered_json& value);

/// Reads the conversation of `record`, whose messages are at `field`; tools may be a list or a list in JSON, and
/// `system` the system message. Without `messages` other layouts are read as well: messages with `from` and `value`
/// (ShareGPT) at `conversations`, and `instruction`, `input`, `output` (Alpaca).
/// \throws FormatError naming the message that is malformed or contains what no text can express (images)
Conversation read_conversation(const nlohmann::ordered_json& record, const std::string& field);

/// True if `prompt` and `completion` of `record` are lists, of messages.
bool is_message_pair(const nlohmann::ordered_json& record);

/// Reads a conversation whose first messages are at `prompt`, and those to be learned, of any role, at `completion`.
/// \throws as read_conversation()
Conversation read_message_pair(const nlohmann::ordered_json& record);

/// Keys of `record` that nothing reads. \param field  key of the messages; empty: a prompt and a completion,
/// or a preference
/// \param is_preference  `chosen` and `rejected` are read, and no `completion`
std::vector<std::string> unread_keys(const nlohmann::ordered_json& record, const std::string& field,
                                     bool is_preference = false);

/// Messages without keys that are null or our own; what a message thinks is at all keys that templates read it from.
/// Source: render_jinja_template() of transformers 5.23
nlohmann::ordered_json as_templates_read(const nlohmann::ordered_json& messages);

}  // namespace fsdp
