#pragma once
// Texts for a file of prompts, written as they end, so that a later run goes on after them.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/prompt_file.hpp"

namespace fsdp {

struct PromptResultsOptions {
  std::filesystem::path output;  ///< empty: stdout
  bool overwrite = false;        ///< overwrites `output`
  std::int64_t batch_size = 8;   ///< prompts of a rank at a time
  SamplingOptions sampling;
  std::string made_with;  ///< all else that decides what is written: the model and how it computes
  bool show_progress = false;
};

struct PromptResultsCounts {
  std::int64_t done_before = 0;  ///< prompts with a result in `output`
  std::int64_t written = 0;
  std::int64_t tokens = 0;  ///< of these
  double seconds = 0;
};

/// Writes a line {"index", "id", "text", "ended", "tokens_generated", "key"} for each prompt that has none in the
/// output. A text depends on neither the batch size nor the number of ranks; with sampling it has a seed of its own, by
/// the number of its prompt. Collective.
/// \throws FormatError naming the line of the output that belongs to another prompt or to other options; IoError
PromptResultsCounts write_prompt_results(ModelRuntime& runtime, const Tokenizer& tokenizer,
                                         const std::vector<FilePrompt>& prompts, const PromptResultsOptions& options,
                                         const Logger& log);

}  // namespace fsdp
