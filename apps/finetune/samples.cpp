#include "apps/finetune/samples.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/training/evaluate/chat_prompt.hpp"
#include "lib/training/evaluate/generation_ends.hpp"

namespace fsdp::detail {

std::vector<Prompt> sample_prompts(const RunSetup& setup) {
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  const auto& asked = setup.options.validation;
  auto conversations = setup.options.conversations;
  if (!setup.chat_template.empty()) conversations.chat_template = setup.chat_template;
  const auto ends = generation_ends({setup.options.model.directory, name});
  std::vector<Prompt> prompts;
  for (const auto& text : asked.sample_prompts) {
    prompts.push_back(asked.sample_chat ? chat_prompt(*tokenizer, name, conversations, {text, ""}, ends)
                                        : plain_prompt(*tokenizer, text, ends));
  }
  return prompts;
}

bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped) {
  const auto& options = context.setup.options;
  SamplingOptions sampling;
  sampling.num_tokens = options.validation.sample_tokens;
  sampling.temperature = 0;
  int number = 0;
  const auto& tokenizer = *context.setup.tokenizer.tokenizer;
  for (const auto& prompt : context.setup.sample_prompts) {
    if (stopped()) return false;
    nlohmann::json sample{{"step", context.trainer.state().step}};
    write_text(context.runtime, tokenizer, prompt, sampling, /*print=*/false, sample);
    record.add_sample(sample, ++number);
  }
  return true;
}

}  // namespace fsdp::detail
