#include "tests/support/torch_doctest.hpp"

#include <cmath>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::unique_ptr<Optimizer> make_adamw(const std::vector<at::Tensor>& masters, const std::vector<bool>& decay,
                                      const OptimizerOptions& options = {}) {
  std::vector<OptimizerParam> params;
  for (std::size_t i = 0; i < masters.size(); ++i) params.push_back(whole_param(masters[i], decay[i]));
  return make_optimizer({host_ops(), std::move(params), options});
}

}  // namespace

TEST_SUITE("optim/adamw") {
  TEST_CASE("step: matches the formula in float64, with decay for some tensors, clipping and changing rates") {
    at::manual_seed(1);
    OptimizerOptions options;
    options.beta2 = 0.99;
    options.weight_decay = 0.1;
    const std::vector<bool> decay{true, false, true};
    std::vector<at::Tensor> master_weights, want, first, second;
    for (const std::int64_t rows : {3, 1, 40}) {
      master_weights.push_back(at::randn({rows, 7}));
      want.push_back(master_weights.back().to(at::kDouble).clone());
      first.push_back(at::zeros_like(want.back()));
      second.push_back(at::zeros_like(want.back()));
    }
    const auto optimizer = make_adamw(master_weights, decay, options);
    for (int step = 1; step <= 10; ++step) {
      const double lr = 1e-2 / step, divisor = step % 3 == 0 ? 1.0 : 0.5 * step;
      std::vector<at::Tensor> gradients;
      for (std::size_t i = 0; i < 3; ++i) {
        gradients.push_back(at::randn(master_weights[i].sizes()));
        const auto g = gradients[i].to(at::kDouble) / divisor;
        want[i].mul_(decay[i] ? 1 - lr * options.weight_decay : 1.0);
        first[i].mul_(0.9).add_(g, 0.1);
        second[i].mul_(0.99).add_(g * g, 0.01);
        const auto m = first[i] / (1 - std::pow(0.9, step)), v = second[i] / (1 - std::pow(0.99, step));
        want[i].sub_(lr * m / (v.sqrt() + options.eps));
      }
      optimizer->step(gradients, lr, divisor);
    }
    CHECK(optimizer->steps() == 10);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(relative_error(master_weights[i], want[i]) < 1e-6);  // ten float32 updates
      CHECK(relative_error(optimizer->state("exp_avg", i), first[i]) < 1e-6);
      CHECK(relative_error(optimizer->state("exp_avg_sq", i), second[i]) < 1e-6);
    }
  }

  TEST_CASE("step: padding of zeros stays zero, and nothing decays in an empty group") {
    const auto master = at::cat({at::ones({3, 2}), at::zeros({1, 2})});
    const auto optimizer = make_adamw({master}, {true});
    for (int step = 0; step < 3; ++step) optimizer->step({at::cat({at::randn({3, 2}), at::zeros({1, 2})})}, 1e-2, 1.0);
    CHECK(master[3].count_nonzero().item<std::int64_t>() == 0);
    CHECK(optimizer->state("exp_avg_sq", 0)[3].count_nonzero().item<std::int64_t>() == 0);
  }

  TEST_CASE("set_steps: a restored optimizer continues bit for bit") {
    at::manual_seed(2);
    const auto start = at::randn({5, 4});
    std::vector<at::Tensor> gradients;
    for (int step = 0; step < 6; ++step) gradients.push_back(at::randn({5, 4}));
    const auto whole = start.clone();
    const auto one = make_adamw({whole}, {true});
    for (int step = 0; step < 3; ++step) one->step({gradients[static_cast<std::size_t>(step)].clone()}, 1e-3, 1.0);
    const auto resumed = whole.clone();
    const auto two = make_adamw({resumed}, {true});
    two->state("exp_avg", 0).copy_(one->state("exp_avg", 0));
    two->state("exp_avg_sq", 0).copy_(one->state("exp_avg_sq", 0));
    two->set_steps(one->steps());
    for (std::size_t step = 3; step < 6; ++step) {
      one->step({gradients[step].clone()}, 1e-3, 1.0);
      two->step({gradients[step].clone()}, 1e-3, 1.0);
    }
    CHECK(same_bits(whole, resumed));
  }
}
