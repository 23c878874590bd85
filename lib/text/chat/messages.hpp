#pragma once
// Reads the messages of a sample: {"role": ..., "content": ...}.
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fsdp {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
  bool counts = true;  ///< the loss counts it if the assistant says it; false for `"weight": 0`
};

/// Keys beside the messages, or beside prompt and completion, that a text cannot express.
inline constexpr std::array kUnsaidBeside{"tools", "functions", "images", "image",
                                          "audio", "audios",    "videos", "video"};

/// \throws FormatError naming a key of kUnsaidBeside that `record` has with a value other than null or empty
void refuse_unsaid(const nlohmann::json& record);

/// Reads a list of messages. A content is a string, or a list of one {"type": "text", "text": ...}.
/// \throws FormatError naming the message that is malformed or contains something that a text cannot express (tools,
///   images, reasoning)
std::vector<ChatMessage> read_messages(const nlohmann::json& list, const std::string& field);

}  // namespace fsdp
