#include "lib/training/objectives/judged_answers.hpp"

#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

using namespace fsdp;

namespace {

// Three answers of which two are wanted, on this rank all of the step.
const std::vector<double> kReference{-20, -30, -5}, kWanted{1, 0, 1};
constexpr double kDivergence = 1.5;

MicroBatch answers() {
  MicroBatch batch;
  batch.reference_S = at::tensor(kReference, at::kDouble);
  batch.desirable_S = at::tensor(kWanted, at::kDouble);
  batch.of_step = {3, 2, kDivergence};
  return batch;
}

ObjectiveOptions options_of(KtoLoss loss) {
  ObjectiveOptions options;
  options.kind = ObjectiveKind::kto;
  options.kto_loss = loss;
  options.beta = 0.3;
  options.desirable_weight = 0.5;
  options.undesirable_weight = 2;
  return options;
}

struct JoinedAnswers {
  double loss = 0, count = 0;
  at::Tensor slopes;
  StepSums sums;
};

JoinedAnswers join_answers(KtoLoss loss, const std::vector<double>& nats) {
  const JudgedAnswers objective(options_of(loss));
  JoinedAnswers joined;
  joined.sums = StepSums(objective.sums());
  joined.slopes = objective.join(answers(), at::tensor(nats, at::kDouble), joined.sums);
  joined.loss = joined.sums.pending[0].item<double>();
  joined.count = joined.sums.weight;
  return joined;
}

double sum_of(const JoinedAnswers& joined, const std::string& name) {
  for (std::size_t i = 0; i < joined.sums.named.size(); ++i) {
    if (joined.sums.named[i].name == name)
      return joined.sums.named[i].value + joined.sums.pending[static_cast<std::int64_t>(2 + i)].item<double>();
  }
  return std::nan("");
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

TEST_SUITE("train/judged_answers") {
  TEST_CASE("loss and figures are those of the formula") {
    const std::vector<double> nats{18, 33, 4.5};
    for (const auto kind : {KtoLoss::kto, KtoLoss::apo_zero_unpaired}) {
      const double shift = kind == KtoLoss::kto ? kDivergence : 0;
      const auto joined = join_answers(kind, nats);
      double loss = 0;
      for (std::size_t i = 0; i < nats.size(); ++i) {
        const double ratio = -nats[i] - kReference[i], sign = kWanted[i] == 1 ? 1 : -1;
        loss += (kWanted[i] == 1 ? 0.5 : 2) * (1 - sigmoid(sign * 0.3 * (ratio - shift)));
      }
      CHECK(joined.loss == doctest::Approx(loss));
      CHECK(joined.count == 3);
      // Means over each kind of answers, times the number of all answers.
      CHECK(sum_of(joined, "reward_chosen") == doctest::Approx(3 * 0.3 * (2 + 0.5) / 2));
      CHECK(sum_of(joined, "reward_rejected") == doctest::Approx(3 * 0.3 * -3));
      CHECK(sum_of(joined, "reward_margin") == doctest::Approx(3 * 0.3 * (1.25 + 3)));
      CHECK(sum_of(joined, "logps_chosen") == doctest::Approx(3 * -22.5 / 2));
      CHECK(sum_of(joined, "logps_rejected") == doctest::Approx(3 * -33));
      CHECK(sum_of(joined, "kl") == doctest::Approx(3 * shift));
    }
  }

  TEST_CASE("derivatives are those of finite differences, and extreme answers give finite ones") {
    constexpr double kStep = 1e-6;  // rounding and curvature then leave about 1e-9
    for (const auto kind : {KtoLoss::kto, KtoLoss::apo_zero_unpaired}) {
      for (const auto& nats : {std::vector<double>{18, 33, 4.5}, {25, 28, 9}}) {
        const auto slopes = join_answers(kind, nats).slopes;
        for (std::size_t i = 0; i < nats.size(); ++i) {
          auto more = nats, less = nats;
          more[i] += kStep;
          less[i] -= kStep;
          const double want = (join_answers(kind, more).loss - join_answers(kind, less).loss) / (2 * kStep);
          CHECK(std::abs(slopes[static_cast<std::int64_t>(i)].item<double>() - want) < 1e-7);
        }
      }
      const auto extreme = join_answers(kind, {0, 1e5, 1e5});
      CHECK(std::isfinite(extreme.loss));
      CHECK(extreme.slopes.isfinite().all().item<bool>());
    }
  }

  TEST_CASE("without answers of one kind its figures are no numbers") {
    const JudgedAnswers objective(options_of(KtoLoss::kto));
    auto batch = answers();
    batch.desirable_S.fill_(1);
    batch.of_step = {3, 3, 0};
    StepSums sums(objective.sums());
    objective.join(batch, at::tensor({18.0, 33.0, 4.5}, at::kDouble), sums);
    CHECK(std::isnan(sums.pending[3].item<double>()));  // reward_rejected
    CHECK(std::isfinite(sums.pending[2].item<double>()));
    CHECK(std::isfinite(sums.pending[0].item<double>()));
    CHECK(objective.weigh(batch).tokens == 3);
  }
}
