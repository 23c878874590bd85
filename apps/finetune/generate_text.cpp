#include "apps/finetune/generate_text.hpp"

#include "lib/base/types/error.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/tokenizers/vocabulary/generated_text.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/generation_ends.hpp"

namespace fsdp::detail {

bool generate_text(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                   const std::function<bool()>& stopped, const Logger& log) {
  const FlightWork work(world.recorder(), "generate");
  const auto& options = setup.options;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (options.prompt.empty()) return true;
  if (tokenizer == nullptr) throw UsageError("--prompt: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  SamplingOptions sampling;
  sampling.num_tokens = options.num_tokens;
  sampling.seed = options.seed;
  const auto prompt =
      plain_prompt(*tokenizer, options.prompt, generation_ends({options.adapter, options.model.directory, name}));
  bool is_cut = false;
  const auto ids = generate(runtime, prompt.ids, sampling, [&](std::int32_t id) {
    is_cut = stopped();
    return !is_cut && !prompt.is_end(id);
  });
  if (world.rank() == 0) log.info("text      " + options.prompt + continuation(*tokenizer, ids));
  return !is_cut;
}

}  // namespace fsdp::detail
