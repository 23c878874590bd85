#pragma once
// Token-exact loss of a model on a token file.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/objectives/objective.hpp"

namespace fsdp {

struct Evaluation {
  /// A sum of the objective beside the loss, divided by its count.
  struct Mean {
    std::string name;
    double value = 0;
  };

  double loss = 0;  ///< of the objective; the next token's: mean nats per token over all tokens, each once
  double perplexity = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  double seconds = 0;
  std::vector<Mean> means;
};

/// The loss of the objective over every row once, whatever the world and batch size: rows go to the ranks in turn, the
/// last ones may get none. Collective; the same result on every rank. \param stopped  asked before each micro-batch,
/// the same answer on every rank; may be empty \return nothing: it was stopped
std::optional<Evaluation> evaluate_rows(ModelRuntime& runtime, const Objective& objective, const DataLoader& reader,
                                        std::int64_t micro_batch_size, const std::function<bool()>& stopped = {});

/// The same row by row, or document by document, so that an error can be told.
struct RowScores {
  std::vector<double> nats;    ///< sum over the record's targets
  std::vector<double> tokens;  ///< targets
  std::vector<double> bytes;   ///< of the targets' text; empty without a tokenizer
};

struct ScoreOptions {
  std::int64_t records = 0;              ///< the first rows or documents of the file
  std::int64_t micro_batch_size = 1;     ///< on one rank: rows or documents, of packed documents rows
  const Tokenizer* tokenizer = nullptr;  ///< whose ids the file holds; null: no bytes
};

/// The reader's rows that hold any of the first `records` rows or documents of its file, ascending: more than these are
/// not computed.
std::vector<std::int64_t> rows_of_records(const TokenLoader& reader, std::int64_t records);

/// Packed documents are scored in their rows, each by itself.
/// Collective; the same result on every rank. \param progress  called on every rank with the share that is done
RowScores score_rows(ModelRuntime& runtime, const TokenLoader& reader, const ScoreOptions& options,
                     const std::function<void(double done)>& progress);

}  // namespace fsdp
