#pragma once
// The most probable continuations of many prompts, up to texts that end them.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

struct AskedPrompt {
  std::vector<std::int32_t> ids;   ///< at least one
  std::vector<std::string> stops;  ///< texts that end the answer and do not belong to it
  std::int64_t most_tokens = 0;
};

struct AnswerPromptsOptions {
  std::vector<std::int32_t> ends;  ///< ids that end an answer
  std::int64_t batch_size = 8;     ///< prompts of a rank at a time
  /// Called on every rank with the share of prompts that is answered.
  std::function<void(double done)> progress = {};
  /// Called before each token, returns the same on every rank; may be empty.
  std::function<bool()> stopped = {};
};

/// The answers, on every rank: texts by themselves, without that of the end in `ends`; nothing when stopped.
/// Collective: the prompts are the same on all ranks, and are shared out.
std::optional<std::vector<std::string>> answer_prompts(ModelRuntime& runtime, const Tokenizer& tokenizer,
                                                       const std::vector<AskedPrompt>& prompts,
                                                       const AnswerPromptsOptions& options);

}  // namespace fsdp
