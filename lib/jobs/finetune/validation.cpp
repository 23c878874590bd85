#include "lib/jobs/finetune/validation.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "lib/base/error.hpp"
#include "lib/base/path_below.hpp"
#include "lib/base/text_format.hpp"
#include "lib/eval/evaluate.hpp"
#include "lib/jobs/finetune/samples.hpp"

namespace fsdp::detail {
namespace {

/// With rank 0's loss on every rank: a sum need not have the same bits on all of them, and decisions must be alike.
Evaluation evaluate_set(ModelRuntime& runtime, const RunSetup& setup, const ValidationData& set) {
  auto result = evaluate_rows(runtime, set.rows, setup.batches.micro_batch_size);
  std::array<double, 2> figures{result.loss, result.perplexity};
  runtime.world().broadcast(std::as_writable_bytes(std::span(figures)), 0);
  result.loss = figures[0];
  result.perplexity = figures[1];
  return result;
}

std::string eval_line(std::int64_t step, const ValidationData& set, const Evaluation& result) {
  return fmt::format("eval   {:>6}   {}{}loss {:.4f}   perplexity {:.1f}   {} tokens in {:.1f} s", step, set.name,
                     set.name.empty() ? "" : "   ", result.loss, result.perplexity, format_count(result.tokens),
                     result.seconds);
}

/// Than the run whose patience the checkpoint knows of: it has another folder, or goes by other data now.
bool is_another(const RunSetup& setup, const ValidationState& state) {
  if (!setup.restart || setup.validation.empty() || state.step < 0) return false;
  if (!path_below(setup.restart->candidates.front(), setup.checkpoints())) return true;
  const auto data = [](const nlohmann::json& options) { return options.value("val-data", std::string()); };
  return state.set != setup.validation[setup.deciding].name ||
         data(setup.restart->manifest.options) != data(setup.saved_options);
}

}  // namespace

std::vector<double> validate(ModelRuntime& runtime, const RunSetup& setup, ProgressLine& progress, std::int64_t step) {
  std::vector<double> losses;
  for (const auto& set : setup.validation) {
    const auto result = evaluate_set(runtime, setup, set);
    progress.line(eval_line(step, set, result));
    losses.push_back(result.loss);
  }
  return losses;
}

void report_validation(const RunSetup& setup, const std::vector<double>& losses, nlohmann::json& report) {
  if (setup.validation.empty()) return;
  const double deciding = losses.empty() ? std::nan("") : losses.at(setup.deciding);
  report["val_loss"] = deciding;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto& name = setup.validation[i].name;
    if (!name.empty()) report["val_losses"][name] = losses[i];
  }
}

Validation::Validation(const RunContext& context, RunRecord& record, const StepJudge& judge, MemoryWatch& memory)
    : context_(context), record_(record), judge_(judge), memory_(memory) {
  const auto& asked = context.setup.options.validation;
  rules_ = {asked.keeps_best(), asked.patience, asked.min_delta};
  if (!is_another(context.setup, context.trainer.state().validation)) return;
  auto& state = context.trainer.state().validation;
  state.without_improvement = 0;
  state.lowest_loss = ValidationState().lowest_loss;
}

void Validation::after_step(const StepReport&, bool last) {
  found_the_best_ = false;
  const auto every = context_.setup.options.eval_every;
  if (record_.is_open() && every > 0 && !last && context_.trainer.state().step % every == 0) run();
}

void Validation::run() {
  found_the_best_ = false;
  const auto& setup = context_.setup;
  const bool samples = !setup.options.validation.sample_prompts.empty() && record_.is_open();
  if (setup.validation.empty() && !samples) return;
  memory_.disturb();
  losses_.clear();
  for (std::size_t i = 0; i < setup.validation.size(); ++i) validate_set(setup.validation[i], i == setup.deciding);
  if (samples) write_samples(context_, record_);
}

void Validation::validate_set(const ValidationData& set, bool decides) {
  const auto step = context_.trainer.state().step;
  const auto result = evaluate_set(context_.runtime, context_.setup, set);
  losses_.push_back(result.loss);
  const auto verdict = decides ? judge(result.tokens, result.loss, set.name) : std::string();
  context_.progress.line(eval_line(step, set, result) + verdict);
  nlohmann::json record{{"step", step},
                        {"val_loss", result.loss},
                        {"val_perplexity", result.perplexity},
                        {"val_tokens", result.tokens},
                        {"eval_seconds", result.seconds}};
  if (!set.name.empty()) record["val_set"] = set.name;
  record_.add_metrics(record);
}

/// \return what it means, for the log
std::string Validation::judge(std::int64_t tokens, double loss, const std::string& set) {
  auto& state = context_.trainer.state().validation;
  const auto verdict = judge_validation(
      state, rules_, {context_.trainer.state().step, set, tokens, loss, !judge_.fails() && record_.is_open()});
  found_the_best_ = verdict.is_best;
  std::string words;
  if (verdict.began_anew) words += "   other data than before: the best is looked for anew";
  if (verdict.is_best) words += "   best";
  if (state.without_improvement > 0)
    words += fmt::format("   {} of {} without improvement", state.without_improvement, rules_.patience);
  return words;
}

std::string Validation::why_early() const {
  const bool is_early = context_.trainer.state().step < context_.setup.total_steps;
  if (!out_of_patience() || !is_early) return "";
  const auto& state = context_.trainer.state().validation;
  return fmt::format("{} in a row had no loss{}{} below {:.4f}{}",
                     format_count_of(state.without_improvement, "validation"), state.set.empty() ? "" : " of ",
                     state.set, state.lowest_loss,
                     rules_.min_delta > 0 ? fmt::format(" by more than {:g}", rules_.min_delta) : std::string());
}

}  // namespace fsdp::detail
