#include "lib/jobs/finetune/samples.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/eval/chat_prompt.hpp"

namespace fsdp::detail {

Prompt sample_prompt(const RunSetup& setup, const std::string& text) {
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (!setup.options.validation.sample_chat) return plain_prompt(*tokenizer, text);
  auto conversations = setup.options.conversations;
  if (!setup.chat_template.empty()) conversations.chat_template = setup.chat_template;
  return chat_prompt(*tokenizer, name, conversations, {text, ""});
}

bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped) {
  const auto& options = context.setup.options;
  SamplingOptions sampling;
  sampling.num_tokens = options.validation.sample_tokens;
  sampling.temperature = 0;
  int number = 0;
  const auto& tokenizer = *context.setup.tokenizer.tokenizer;
  for (const auto& prompt : options.validation.sample_prompts) {
    if (stopped()) return false;
    nlohmann::json sample{{"step", context.trainer.state().step}};
    write_text(context.runtime, tokenizer, sample_prompt(context.setup, prompt), sampling, /*print=*/false, sample);
    record.add_sample(sample, ++number);
  }
  return true;
}

}  // namespace fsdp::detail
