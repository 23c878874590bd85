#pragma once
// Runs the evaluation of fsdp-eval.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/eval/tasks_job.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/training/evaluate/sampling.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct EvaluateOptions {
  std::string checkpoint;  ///< a checkpoint directory or file, or a directory with config.json and safetensors
  std::vector<std::string> compare;  ///< two checkpoints to compare, instead of `checkpoint`
  std::vector<std::string> gates;    ///< METRIC:LIMIT, see parse_gate()
  std::string adapter;               ///< directory in peft's format, for a directory of weights; empty: none
  std::string model_config;          ///< config.json or its directory; empty: taken from the checkpoint
  std::string tokenizer;             ///< gpt2 or a directory; empty: the checkpoint's own
  std::string data;                  ///< token file or texts; empty: no loss is computed
  std::string data_field;            ///< key or column of the texts; empty: the usual name
  ConversationOptions conversations;
  bool stream = false, documents = false;  ///< as in TrainOptions
  std::optional<NumberType> token_type;    ///< of token files that are ids and nothing else
  std::string cache_dir;                   ///< keeps the encoded texts; empty: a temporary folder, removed afterwards
  std::int64_t max_rows = 0;               ///< most rows, texts or games to evaluate; 0: all
  std::int64_t seq_len = 0;                ///< ids; 0: the model's longest sequence, for texts at most 512
  std::int64_t batch_size = 8;             ///< sequences, or packed rows, per rank and forward pass
  std::string log_probs;                   ///< file that receives the log-probability of each record; empty: none
  std::string reference;                   ///< such a file, with which preferences are compared; empty: none
  double dpo_beta = 0.1;                   ///< factor of log-probabilities in rewards
  bool pack = false;                       ///< put several documents into each row
  std::string chess;                       ///< file of games; empty: none
  std::int64_t chess_positions = 200;
  TaskOptions tasks;
  std::optional<std::string> prompt;
  std::string prompts;                ///< file of prompts; empty: none
  std::string output;                 ///< file of their results; empty: stdout
  bool overwrite = false;             ///< overwrite `output`
  bool chat = false;                  ///< prompts are users' messages; without any: a conversation on stdin and stdout
  std::optional<std::string> system;  ///< system message before them, or before tasks with a chat template
  SamplingOptions sampling;
  bool markdown = false;  ///< the table of a comparison
  bool bounded = false;   ///< sampling.num_tokens was asked for: otherwise an answer in a conversation may be longer
  ShardingOptions sharding;
  RuntimeOptions runtime;

  bool converses() const { return chat && !prompt && prompts.empty(); }
};

/// Runs the evaluation. Collective over `world`. \pre names of repositories have been resolved to directories
/// \return answer_no when a gate of a comparison does not hold
/// \throws Error subclasses
ExitCode run_evaluate(ProcessGroup& world, const EvaluateOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
