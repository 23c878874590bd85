#pragma once
// The job behind fsdp-eval.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/run/generate.hpp"
#include "lib/run/train_options.hpp"

namespace fsdp {

struct EvaluateOptions {
  std::string checkpoint;       ///< a checkpoint directory or file, or a directory with config.json and safetensors
  std::string model_config;     ///< config.json or its directory; empty: the checkpoint says what it needs
  std::string data;             ///< token file; empty: no loss
  std::int64_t seq_len = 0;     ///< 0: the model's
  std::int64_t batch_size = 8;  ///< sequences per rank at once
  std::string prompt;           ///< empty: no text
  SamplingOptions sampling;
  ShardingOptions sharding;
  RuntimeOptions runtime;
};

/// Collective over `world`. \throws Error subclasses
ExitCode run_evaluate(ProcessGroup& world, const EvaluateOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
