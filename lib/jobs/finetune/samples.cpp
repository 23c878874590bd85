#include "lib/jobs/finetune/samples.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/eval/text.hpp"

namespace fsdp::detail {

void write_samples(const RunContext& context, RunRecord& record) {
  const auto& options = context.setup.options;
  SamplingOptions sampling;
  sampling.num_tokens = options.validation.sample_tokens;
  sampling.temperature = 0;
  int number = 0;
  const auto& tokenizer = *context.setup.tokenizer.tokenizer;
  for (const auto& prompt : options.validation.sample_prompts) {
    nlohmann::json sample{{"step", context.trainer.state().step}};
    write_text(context.runtime, tokenizer, plain_prompt(tokenizer, prompt), sampling, /*print=*/false, sample);
    record.add_sample(sample, ++number);
  }
}

}  // namespace fsdp::detail
