#include "lib/training/objectives/reward.hpp"

#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

#include <cmath>

using namespace fsdp;

namespace {

struct Joined {
  double loss = 0;
  at::Tensor slopes;
  StepSums sums;
};

Joined join(double center, const std::vector<double>& nats) {
  const RewardObjective objective(center);
  Joined joined;
  joined.sums = StepSums(objective.sums());
  joined.slopes = objective.join(MicroBatch(), at::tensor(nats, at::kDouble), joined.sums);
  joined.loss = joined.sums.pending[0].item<double>();
  return joined;
}

}  // namespace

TEST_SUITE("train/reward") {
  TEST_CASE("loss, sums and derivatives are those of the formula") {
    for (const double center : {0.0, 0.01, 0.5}) {
      // Losses of sequences are the negatives of scores: two pairs, one the right way round.
      const std::vector<double> nats{-2.5, 0.5, 3.0, -40.0};
      const auto all = join(center, nats);
      double loss = 0;
      for (const auto& [chosen, rejected] : {std::pair(2.5, -0.5), {-3.0, 40.0}})
        loss += std::log1p(std::exp(-(chosen - rejected))) + center * (chosen + rejected) * (chosen + rejected);
      CHECK(all.loss == doctest::Approx(loss));
      CHECK(all.sums.weight == 2);
      CHECK(all.sums.pending[2].item<double>() == doctest::Approx(-0.5));   // chosen
      CHECK(all.sums.pending[3].item<double>() == doctest::Approx(39.5));   // rejected
      CHECK(all.sums.pending[4].item<double>() == doctest::Approx(-40.0));  // margin
      CHECK(all.sums.pending[5].item<double>() == 1);                       // one is right
      for (std::size_t i = 0; i < nats.size(); ++i) {
        constexpr double kStep = 1e-6;
        auto more = nats, less = nats;
        more[i] += kStep;
        less[i] -= kStep;
        const double slope = (join(center, more).loss - join(center, less).loss) / (2 * kStep);
        CHECK(all.slopes[static_cast<std::int64_t>(i)].item<double>() == doctest::Approx(slope).epsilon(1e-6));
      }
    }
  }
}
