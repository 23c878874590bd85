#pragma once
// Text that a model writes.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/text/chat/conversation_options.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/training/evaluate/generate.hpp"

namespace fsdp {

/// For JSON, which is UTF-8: what a model writes need not be, and is replaced where it is not.
nlohmann::json json_text(const std::string& text);

/// The text and ids that a model continues.
struct Prompt {
  std::string text;                ///< as the user gave it
  std::string shown;               ///< what stands before the model's text where that is printed
  std::vector<std::int32_t> ids;   ///< of all that the model sees
  std::vector<std::int32_t> ends;  ///< tokens that end its text

  bool is_end(std::int32_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }
};

/// A text that goes on, up to one of `ends` or the tokenizer's end mark.
/// \param ends  of the model: generation_ends()
Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends);

/// Continues a prompt until the model ends the text or `sampling` has enough. Collective.
/// \param print   writes prompt and text to stdout as it comes, on rank 0
/// \param report  receives prompt, prompt_tokens, text, tokens_generated and ended ("eos": by one of `ends`, "length")
void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const Prompt& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report);

// A question as a model of conversations sees it.

struct ChatQuestion {
  std::string user;    ///< what the user says
  std::string system;  ///< what the system says before; empty: nothing
};

/// The question by the chat template, up to where the assistant's answer begins; that ends with its turn or the text,
/// or by one of `ends`.
/// \param tokenizer_name  "gpt2" or the directory that the tokenizer came from
/// \param ends            of the model: generation_ends()
/// \throws what find_chat_template() and encoding throw
Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends);

}  // namespace fsdp
