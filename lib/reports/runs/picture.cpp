#include "lib/reports/plots/comparison.hpp"
#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {
namespace {

bool steps_are_equally_large(const std::vector<RunSummary>& runs) {
  double tokens = -1;
  for (const auto& run : runs) {
    if (run.files.steps.empty()) continue;
    const double first = run.files.steps.front().tokens;
    if (tokens >= 0 && first != tokens) return false;
    tokens = first;
  }
  return true;
}

}  // namespace

std::string run_comparison_picture(const RunComparison& comparison, bool svg) {
  const bool over_steps = steps_are_equally_large(comparison.runs);
  RunsPicture picture;
  picture.x_name = over_steps ? "step" : "tokens";
  picture.title = comparison.runs.size() == 1 ? comparison.runs.front().label : "";
  for (const auto& name : comparison.differ) picture.title += (picture.title.empty() ? "by " : ", ") + name;
  for (const auto& summary : comparison.runs) {
    RunsPicture::Run run;
    run.label = summary.label;
    double tokens = 0;
    for (const auto& step : summary.files.steps) {
      tokens += step.tokens;
      run.x.push_back(over_steps ? static_cast<double>(step.step) : tokens);
      run.loss.push_back(step.loss);
    }
    const auto& speed = summary.tokens_per_second;
    run.speed = speed.median;
    run.low = speed.low_quartile;
    run.high = speed.high_quartile;
    picture.runs.push_back(std::move(run));
  }
  return svg ? runs_picture_svg(picture) : runs_picture_png(picture);
}

}  // namespace fsdp
