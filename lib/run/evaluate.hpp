#pragma once
// Token-exact loss of a model on a token file.
#include <cstdint>

#include "lib/run/batches.hpp"
#include "lib/run/model_runtime.hpp"

namespace fsdp {

struct Evaluation {
  double loss = 0;  ///< mean nats per token over all tokens, each once
  double perplexity = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  double seconds = 0;
};

/// Every row once, whatever the world and batch size: rows go to the ranks in turn, the last ones may get none.
/// Collective; the same result on every rank.
Evaluation evaluate_rows(ModelRuntime& runtime, const BatchReader& reader, std::int64_t rows_per_micro_batch);

}  // namespace fsdp
