#include "lib/training/objectives/pair_losses.hpp"

#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

using namespace fsdp;

namespace {

ObjectiveOptions options_of(ObjectiveKind kind, double beta, std::vector<WeightedDpoLoss> losses) {
  ObjectiveOptions options;
  options.kind = kind;
  options.beta = beta;
  options.dpo_losses = std::move(losses);
  return options;
}

/// All losses, each alone, and a weighted sum.
std::vector<std::pair<std::string, ObjectiveOptions>> all_losses() {
  std::vector<std::pair<std::string, ObjectiveOptions>> all;
  for (const auto& loss : dpo_losses()) {
    auto options = options_of(ObjectiveKind::dpo, 0.3, {{&loss, 1}});
    options.label_smoothing = loss.takes_smoothing ? 0.2 : 0;
    all.emplace_back(loss.text, options);
  }
  all.emplace_back(
      "sum", options_of(ObjectiveKind::dpo, 0.1, {{find_dpo_loss("sigmoid"), 0.75}, {find_dpo_loss("apo_zero"), 2}}));
  for (const auto& named : kObjectiveNames) {
    if (named.value != ObjectiveKind::next_token && named.value != ObjectiveKind::dpo &&
        named.value != ObjectiveKind::kto)
      all.emplace_back(named.text, options_of(named.value, 0.7, {}));
  }
  return all;
}

PairSides sides_of(double chosen, double rejected) {
  const auto one = [](double value) { return at::tensor({value}, at::kDouble); };
  return {one(chosen), one(rejected), one(5), one(3)};
}

double loss_of(const ObjectiveOptions& options, double chosen, double rejected) {
  return pair_losses(options, sides_of(chosen, rejected)).value.item<double>();
}

}  // namespace

TEST_SUITE("train/pair_losses") {
  TEST_CASE("derivatives are those of finite differences") {
    for (const auto& [name, options] : all_losses()) {
      CAPTURE(name);
      for (const double chosen : {-9.0, -2.5, -0.4}) {
        for (const double rejected : {-7.0, -3.0, -0.3}) {
          const auto exact = pair_losses(options, sides_of(chosen, rejected));
          constexpr double kStep = 1e-6;  // rounding and curvature then leave about 1e-9
          const double by_chosen =
              (loss_of(options, chosen + kStep, rejected) - loss_of(options, chosen - kStep, rejected)) / (2 * kStep);
          const double by_rejected =
              (loss_of(options, chosen, rejected + kStep) - loss_of(options, chosen, rejected - kStep)) / (2 * kStep);
          CHECK(std::abs(exact.by_chosen.item<double>() - by_chosen) < 1e-7);
          CHECK(std::abs(exact.by_rejected.item<double>() - by_rejected) < 1e-7);
        }
      }
    }
  }

  TEST_CASE("extreme log-probabilities give finite losses and derivatives") {
    for (const auto& [name, options] : all_losses()) {
      CAPTURE(name);
      for (const auto& [chosen, rejected] :
           std::vector<std::pair<double, double>>{{0, 0}, {-1e-18, -4000}, {-4000, -1e-18}, {-3000, -3000}}) {
        const auto exact = pair_losses(options, sides_of(chosen, rejected));
        for (const auto& tensor : {exact.value, exact.by_chosen, exact.by_rejected})
          CHECK(std::isfinite(tensor.item<double>()));
      }
    }
  }
}
