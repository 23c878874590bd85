#pragma once
// Text from a model: the same on every rank.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Consumer of logits, of which only a part exists at a time.
/// \param logits_NV  of tokens [first, first + N) of the micro-batch: float32, contiguous; V is the vocabulary and, for
///                   matrix products, some columns more that mean nothing
using LogitsBody = std::function<void(std::int64_t first, at::Tensor& logits_NV)>;

/// Runs a micro-batch and calls `body` with the logits of its tokens, in order. Collective; a rank without rows takes
/// part and its body is not called.
void forward_logits(ModelRuntime& runtime, const MicroBatch& batch, const LogitsBody& body);

struct SamplingOptions {
  std::int64_t num_tokens = 50;
  double temperature = 1.0;  ///< 0: the most likely token each time
  int top_k = 0;             ///< 0: all
  double top_p = 1.0;        ///< smallest set of most likely tokens that has this probability
  std::uint64_t seed = 0;
  bool no_cache = false;  ///< the whole sequence for every token, as a check
};

/// Takes each new id on every rank. \return false to end the text there
using TokenSink = std::function<bool(std::int32_t id)>;

/// Continues `prompt` (at least one id). Rank 0 draws each token and tells the others. Once the sequence is longer than
/// the model's positions, the last block_size ids are what the model sees, as minGPT does it.
/// Collective. \param on_token  must decide alike on all ranks; the id that ends the text is part of the result
/// \throws UsageError for an empty prompt, an id outside the vocabulary or options out of range
std::vector<std::int32_t> generate(ModelRuntime& runtime, std::vector<std::int32_t> prompt,
                                   const SamplingOptions& options, const TokenSink& on_token = {});

/// One id from logits [vocabulary] (float32, host), by options; `random` uniform in [0, 1). For tests.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double random);

// The tokens with which a model ends what it writes.

/// eos_token_id, a number or a list, where transformers' generate() looks for it: in generation_config.json of the
/// first directory that has this file or config.json, else in its config.json. Empty where nothing is said.
/// \throws FormatError naming file and key for anything else than ids
std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories);

}  // namespace fsdp
