#pragma once
// The most probable continuations of many prompts, up to texts that end them.
#include <cstdint>
#include <functional>
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

/// The answers, on every rank: texts by themselves, without that of the end in `ends`. Collective: the prompts are the
/// same on all ranks, and are shared out. \param batch_size  prompts of a rank at a time
/// \param progress  called on every rank with the share of prompts that is answered
std::vector<std::string> answer_prompts(ModelRuntime& runtime, const Tokenizer& tokenizer,
                                        const std::vector<AskedPrompt>& prompts, const std::vector<std::int32_t>& ends,
                                        std::int64_t batch_size, const std::function<void(double done)>& progress);

}  // namespace fsdp
