#include "lib/jobs/finetune/validation.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/eval/evaluate.hpp"

namespace fsdp::detail {

double validate(ModelRuntime& runtime, const RunSetup& setup, ProgressLine& progress, std::int64_t step,
                RunRecord* record) {
  const auto result = evaluate_rows(runtime, *setup.val_data, setup.batches.micro_batch_size);
  progress.line(fmt::format("eval   {:>6}   loss {:.4f}   perplexity {:.1f}   {} tokens in {:.1f} s", step, result.loss,
                            result.perplexity, format_count(result.tokens), result.seconds));
  if (record != nullptr) {
    record->add_metrics({{"step", step},
                         {"val_loss", result.loss},
                         {"val_perplexity", result.perplexity},
                         {"val_tokens", result.tokens},
                         {"eval_seconds", result.seconds}});
  }
  return result.loss;
}

void Validation::after_step(const StepReport&, bool last) {
  const auto every = context_.setup.options.eval_every;
  if (record_.is_open() && every > 0 && !last && context_.trainer.state().step % every == 0) run();
}

void Validation::run() {
  if (!context_.setup.val_data) return;
  memory_.disturb();
  loss_ = validate(context_.runtime, context_.setup, context_.progress, context_.trainer.state().step, &record_);
}

}  // namespace fsdp::detail
