#pragma once
// Messages as data sets hold them: {"role": ..., "content": ...}.
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fsdp {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
  bool counts = true;  ///< for the loss, where the assistant says it; `"weight": 0` says it does not
};

/// Keys that a sample may have beside its messages, or beside prompt and completion, and that text cannot express.
inline constexpr std::array kUnsaidBeside{"tools", "functions", "images", "image",
                                          "audio", "audios",    "videos", "video"};

/// \throws FormatError naming one of kUnsaidBeside that `record` has and that is not null or empty
void refuse_unsaid(const nlohmann::json& record);

/// A list of messages. A content is a string, or a list of one {"type": "text", "text": ...}.
/// \throws FormatError saying which message is not so, or asks for what a text cannot say (tools, images, reasoning)
std::vector<ChatMessage> read_messages(const nlohmann::json& list, const std::string& field);

}  // namespace fsdp
