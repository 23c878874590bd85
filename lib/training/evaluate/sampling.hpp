#pragma once
// Draws the next id from the logits.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

struct SamplingOptions {
  std::int64_t num_tokens = 50;
  double temperature = 1.0;  ///< 0: the most likely token each time
  int top_k = 0;             ///< 0: all
  double top_p = 1.0;        ///< smallest set of most likely tokens that has this probability
  std::uint64_t seed = 0;
  bool no_cache = false;           ///< the whole sequence for every token, as a check
  std::vector<std::string> stops;  ///< texts that end the text and do not belong to it
};

/// \throws RequestError naming an option that is out of range
void check_sampling(const SamplingOptions& options);

/// One id from logits [vocabulary] (float32, host), by options; `random` uniform in [0, 1). For tests.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double random);

}  // namespace fsdp
