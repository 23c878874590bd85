#include "apps/finetune/validation/validation_samples.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/text/text_format.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/generation_ends.hpp"

namespace fsdp::detail {
namespace {

/// The beginning of a sample with its prompt, for one line of the log.
std::string beginning_of(const nlohmann::json& sample) {
  constexpr std::size_t kMost_bytes = 100;
  auto text = sample.value("prompt", std::string()) + sample.value("text", std::string());
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() <= kMost_bytes) return printable(text);
  text.resize(kMost_bytes);
  text.resize(utf8_printable_prefix(text));
  return printable(text) + " ...";
}

}  // namespace

void check_sample_prompts(const RunSetup& setup) {
  const auto& prompts = setup.options.validation.sample_prompts;
  if (prompts.empty() && setup.options.validation.sample_chat)
    throw UsageError("--sample-chat says what --sample-prompt is: give --sample-prompt TEXT");
  if (prompts.empty()) return;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (tokenizer == nullptr) throw UsageError("--sample-prompt: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  for (const auto& prompt : prompts) {
    if (!setup.options.validation.sample_chat && prompt_ids(*tokenizer, prompt).empty())
      throw UsageError("--sample-prompt '" + prompt + "' is empty: at least one token is needed to go on from");
  }
}

std::vector<Prompt> sample_prompts(const RunSetup& setup) {
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  const auto& asked = setup.options.validation;
  auto conversations = setup.options.conversations;
  if (!setup.chat_template.empty()) conversations.chat_template = setup.chat_template;
  const auto ends = generation_ends({setup.options.adapter, setup.options.model.directory, name});
  std::vector<Prompt> prompts;
  for (const auto& text : asked.sample_prompts) {
    prompts.push_back(asked.sample_chat ? chat_prompt(*tokenizer, name, conversations, {text, {}}, ends)
                                        : plain_prompt(*tokenizer, text, ends));
  }
  return prompts;
}

bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped) {
  const FlightWork work(context.world.recorder(), "generate samples");
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
    context.progress.keep("sample    " + beginning_of(sample));
    record.add_sample(sample, ++number);
  }
  return true;
}

}  // namespace fsdp::detail
