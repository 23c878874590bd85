#pragma once
// Evaluation data: a token file, or texts encoded with each checkpoint's tokenizer.
#include <cstdint>
#include <optional>
#include <vector>

#include "apps/eval/evaluate_job.hpp"
#include "lib/base/log.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/evaluate/subject.hpp"

namespace fsdp {

struct EvaluationData {
  std::optional<TokenLoader> reader;
  std::int64_t rows = 0;
  std::int64_t ids_not_scored = 0;  ///< beyond the longest sequence that the model takes
};

struct EvaluationInput {
  bool texts = false;
  std::vector<EvaluationData> of_subject;
  bool same_tokens = true;  ///< all subjects see the same sequences of ids, so losses per token can be compared
};

/// Opens options.data for every subject. Texts are encoded first, into options.cache_dir or a temporary folder that is
/// removed before this returns. Sequences have the same length for all subjects. Collective.
/// \throws RuntimeFailure after a signal while texts are encoded; what prepare_tokens() and DataLoader throw
EvaluationInput open_evaluation_data(ProcessGroup& world, const EvaluateOptions& options,
                                     std::vector<EvaluationSubject>& subjects, const Logger& log);

}  // namespace fsdp
