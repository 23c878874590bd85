#pragma once
// A file of prompts in JSON Lines.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/ignored.hpp"
#include "lib/training/evaluate/prompt.hpp"

namespace fsdp {

struct FilePrompt {
  nlohmann::json id;  ///< "id" of its line: a text or a whole number; null: it has none
  Prompt prompt;
};

struct PromptFile {
  std::vector<FilePrompt> prompts;  ///< in the order of the lines, without empty ones
  Ignored ignored;                  ///< keys that nothing reads
};

/// How the lines of a file of prompts are read.
struct PromptFileOptions {
  bool chat = false;                  ///< `prompt` is a user's message
  std::optional<std::string> system;  ///< message before such a prompt
  ConversationOptions conversations;
  std::string tokenizer_name;      ///< "gpt2" or the directory that the tokenizer came from
  std::vector<std::int32_t> ends;  ///< of the model: generation_ends()
};

/// Reads lines {"prompt": TEXT} or {"messages": [...]}, which the chat template writes, perhaps with "id" (no two are
/// the same), "tools", "system" and "chat_template_kwargs".
/// \throws FormatError naming file, line and key; IoError; what ChatPrompts throws
PromptFile read_prompts(const std::filesystem::path& file, const Tokenizer& tokenizer,
                        const PromptFileOptions& options);

}  // namespace fsdp
