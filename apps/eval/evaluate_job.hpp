#pragma once
// Runs the evaluation of fsdp-eval.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct EvaluateOptions {
  std::string checkpoint;  ///< a checkpoint directory or file, or a directory with config.json and safetensors
  std::vector<std::string> compare;  ///< two of them, instead
  std::vector<std::string> gates;    ///< METRIC:LIMIT, see parse_gate()
  std::string adapter;               ///< directory as peft writes it, for a directory of weights; empty: none
  std::string model_config;          ///< config.json or its directory; empty: the checkpoint says what it needs
  std::string tokenizer;             ///< gpt2 or a directory; empty: the checkpoint's
  std::string data;                  ///< token file or texts; empty: no loss
  std::string data_field;            ///< key or column of the texts; empty: the usual one
  ConversationOptions conversations;
  std::string cache_dir;        ///< keeps the encoded texts; empty: a temporary folder, removed
  std::int64_t max_rows = 0;    ///< rows, texts, games; 0: all
  std::int64_t seq_len = 0;     ///< 0: the model's, texts up to 512 ids
  std::int64_t batch_size = 8;  ///< sequences per rank at once, or packed rows
  bool pack = false;            ///< several documents in each row
  std::string chess;            ///< games; empty: none
  std::int64_t chess_positions = 200;
  std::optional<std::string> prompt;
  bool chat = false;   ///< the prompt is a user's message
  std::string system;  ///< what the system says before it; empty: nothing
  SamplingOptions sampling;
  ShardingOptions sharding;
  RuntimeOptions runtime;
};

/// Collective over `world`. Names of repositories are resolved already.
/// \return answer_no when a gate of a comparison did not hold
/// \throws Error subclasses
ExitCode run_evaluate(ProcessGroup& world, const EvaluateOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
