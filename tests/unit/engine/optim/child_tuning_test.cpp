// Compares Child-Tuning with its authors' code on torch.optim.AdamW (tests/fixtures/training/README.md). The tolerance
// is that of the fixtures: float32 updates in a different order.
#include "tests/support/torch_doctest.hpp"

#include <cmath>
#include <numeric>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/support/read_tensor.hpp"
#include "tests/support/tensor_compare.hpp"

namespace fsdp::test {
namespace {

const std::filesystem::path kChildFolder = std::filesystem::path(FSDP_FIXTURE_DIR) / "training/child_tuning";
const std::vector<std::string> kChildNames{"embeddings.weight", "layer.0.weight", "layer.0.bias", "layer.1.weight",
                                           "classifier.weight"};
constexpr double kChildTolerance = 1e-6;
constexpr int kFisherBatches = 6, kChildSteps = 10;

at::Tensor fixture(const std::string& file, const std::string& name) {
  return read_tensor(SafetensorsReader(kChildFolder / (file + ".safetensors")), name);
}

OptimizerOptions child_options(ChildTuning mode, double p = 0.3) {
  OptimizerOptions options;
  options.beta2 = 0.999;
  options.weight_decay = 0.05;
  options.child_tuning = {mode, p, 17};
  return options;
}

/// The rows of each parameter on one rank of a group.
class ChildShard {
 public:
  explicit ChildShard(ProcessGroup& world) {
    for (const auto& name : kChildNames) {
      const auto whole = fixture("inputs", "param." + name);
      const auto range = shard_range(whole.size(0), world.size(), world.rank());
      const ParamLayout layout{name, whole.sizes().vec()};
      const auto weights = at::zeros(layout.shape_with_rows(range.padded_rows));
      weights.narrow(0, 0, range.num_rows).copy_(whole.narrow(0, range.first_row, range.num_rows));
      params.push_back({weights, true, layout, range, false, name.starts_with("layer")});
    }
  }
  /// This rank's rows, then padding, of a tensor whose first dimension is the step.
  std::vector<at::Tensor> rows(const std::string& prefix, int step) const {
    std::vector<at::Tensor> all;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto whole = fixture("inputs", prefix + kChildNames[i])[step].to(at::kFloat);
      all.push_back(at::zeros_like(params[i].master_weight.get()));
      all.back().narrow(0, 0, params[i].range.num_rows).copy_(part(whole, i));
    }
    return all;
  }
  at::Tensor part(const at::Tensor& whole, std::size_t i) const {
    return whole.narrow(0, params[i].range.first_row, params[i].range.num_rows);
  }
  at::Tensor mine(const at::Tensor& padded, std::size_t i) const {
    return padded.narrow(0, 0, params[i].range.num_rows);
  }
  double error(const std::string& file, int step) const {
    double worst = 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (params[i].range.num_rows == 0) continue;
      const auto truth = part(fixture(file, "step" + std::to_string(step) + ".param." + kChildNames[i]), i);
      worst = std::max(worst, (mine(params[i].master_weight.get(), i) - truth).abs().max().item<double>());
    }
    return worst;
  }

  std::vector<OptimizerParam> params;
};

/// The divisor of each parameter's gradient in a batch: the gradient is clipped to a norm of its own; 0: no clipping.
std::vector<double> divisors_of(int batch, double clip) {
  std::vector<double> divisors;
  for (const auto& name : kChildNames) {
    const auto norm = fixture("inputs", "fisher_grad." + name)[batch].norm().item<double>();
    divisors.push_back(clip > 0 ? std::max(1.0, (norm + 1e-6) / clip) : 1.0);
  }
  return divisors;
}

std::vector<std::size_t> all_params(const Optimizer& optimizer) {
  std::vector<std::size_t> all(optimizer.num_params());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Ten steps with D on one rank of a group.
void check_task_driven(ProcessGroup& world, const Ops& ops, const std::string& name, double clip, double threshold) {
  const ChildShard shard(world);
  const auto ranks = make_host_collectives(world, ops);
  const auto optimizer = make_optimizer({ops, shard.params, child_options(ChildTuning::task_driven), &*ranks});
  REQUIRE(optimizer->is_choosing_child());
  const auto all = all_params(*optimizer);
  for (int batch = 0; batch < kFisherBatches; ++batch)
    optimizer->add_fisher(all, shard.rows("fisher_grad.", batch), divisors_of(batch, clip));
  const auto child = optimizer->choose_child(world);
  CHECK(child.elements == 896);
  CHECK(child.kept == 269);
  CHECK(child.wanted == 269);
  CHECK(child.threshold / kFisherBatches == doctest::Approx(threshold).epsilon(1e-6));
  for (std::size_t i = 0; i < shard.params.size(); ++i) {
    if (!shard.params[i].in_block) continue;
    const auto mask = shard.part(fixture("inputs", name + ".mask." + kChildNames[i]), i);
    CHECK(shard.mine(optimizer->state(kChildMask, i), i).equal(mask));
  }
  for (int step = 0; step < kChildSteps; ++step) {
    optimizer->step(shard.rows("grad.", step), 1e-2, 1.0);
    if (step == 0) CHECK(shard.error(name + "_torch_adamw", 1) < kChildTolerance);
  }
  CHECK(shard.error(name + "_torch_adamw", kChildSteps) < kChildTolerance);
}

/// A gradient of ones after F's mask at one step, assembled from the ranks' rows.
std::vector<at::Tensor> random_masks(const Ops& ops, int num_ranks, std::int64_t step, std::uint64_t seed, double p) {
  std::vector<at::Tensor> masks;
  for (const auto& name : kChildNames) masks.push_back(at::zeros_like(fixture("inputs", "param." + name)));
  run_thread_ranks(num_ranks, num_ranks, [&](ProcessGroup& world) {
    const ChildShard shard(world);
    std::vector<at::Tensor> ones;
    for (std::size_t i = 0; i < shard.params.size(); ++i) {
      ones.push_back(at::zeros_like(shard.params[i].master_weight.get()));
      shard.mine(ones.back(), i).fill_(1);
    }
    for (std::size_t i = 0; i < ones.size(); ++i)
      mask_at_random(ops, shard.params[i], ones[i], {ChildTuning::task_free, p, seed}, step);
    for (std::size_t i = 0; i < ones.size(); ++i) shard.part(masks[i], i).copy_(shard.mine(ones[i], i));
  });
  return masks;
}

}  // namespace

TEST_SUITE("optim/child_tuning") {
  TEST_CASE("D: thresholds, masks and ten steps match the authors' code, on 1 to 4 ranks") {
    const DeviceOps aten(at::kCPU);
    const CpuOps kernels;
    for (const Ops* ops : {static_cast<const Ops*>(&kernels), static_cast<const Ops*>(&aten)}) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
          check_task_driven(world, *ops, "d", 0, 0.01455710450320646);
          check_task_driven(world, *ops, "d_clip1", 1.0, 0.002458345943232846);
        });
      }
    }
  }

  TEST_CASE("D: all elements with equal sums are kept and counted") {
    const CpuOps ops;
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      const auto sums = at::zeros({100});
      sums.narrow(0, 0, 20).copy_(at::arange(1, 21).to(at::kFloat));
      const auto child = choose_child(ops, {{sums, 100}}, 0.3, world);
      CHECK(child.threshold == 0);
      CHECK(child.kept == 100);
      CHECK(child.wanted == 30);
      const auto few = choose_child(ops, {{sums, 100}}, 0.1, world);
      CHECK(few.kept == 10);
      CHECK(few.wanted == 10);
      CHECK(few.least_kept == 11.0f);
      CHECK(few.threshold == doctest::Approx(10.1));  // equals numpy.percentile(sums, 90)
      CHECK(choose_child(ops, {{sums, 100}}, 1.0, world).kept == 100);
      CHECK(choose_child(ops, {}, 0.3, world).elements == 0);
    });
  }

  TEST_CASE("D: order statistics of values from 1e-30 to 1e30 match a sort, over ranks with uneven shares") {
    const CpuOps kernels;
    const DeviceOps aten(at::kCPU);
    at::manual_seed(3);
    const auto all = at::pow(10.0, at::rand({5000}, at::kDouble) * 60 - 30).to(at::kFloat);
    const auto sorted = std::get<0>(all.sort());
    for (const double p : {0.001, 0.1, 0.25, 0.5, 0.999}) {
      run_thread_ranks(3, 3, [&](ProcessGroup& world) {
        const std::int64_t first[] = {0, 4000, 4000}, count[] = {4000, 0, 1000};
        const auto mine = all.narrow(0, first[world.rank()], count[world.rank()]);
        const Ops& ops = world.rank() == 0 ? static_cast<const Ops&>(kernels) : aten;
        const auto child = choose_child(ops, {{mine, mine.numel()}}, p, world);
        const auto lowest = static_cast<std::int64_t>(std::ceil(4999 * (1 - p)));
        CHECK(child.kept == 5000 - lowest);
        CHECK(child.least_kept == sorted[lowest].item<float>());
      });
    }
  }

  TEST_CASE("F: masks depend on seed, step, parameter and element, not on the rank; factors are 1/p or 0") {
    const CpuOps kernels;
    const DeviceOps aten(at::kCPU);
    const auto one = random_masks(kernels, 1, 1, 17, 0.3);
    double kept = 0, total = 0;
    for (const auto& mask : one) {
      kept += mask.ne(0).sum().item<double>();
      total += static_cast<double>(mask.numel());
      CHECK(at::logical_or(mask.eq(0), (mask * 0.3 - 1).abs().lt(1e-6)).all().item<bool>());
    }
    const double spread = std::sqrt(0.3 * 0.7 / total);
    CHECK(std::abs(kept / total - 0.3) < 4 * spread);
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const auto several = random_masks(kernels, ranks, 1, 17, 0.3);
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(several[i].equal(one[i]));
    }
    const auto by_aten = random_masks(aten, 2, 1, 17, 0.3);
    const auto later = random_masks(kernels, 1, 2, 17, 0.3), other = random_masks(kernels, 1, 1, 18, 0.3);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(by_aten[i].equal(one[i]));
    const auto agree = [](const at::Tensor& a, const at::Tensor& b) {
      return a.ne(0).eq(b.ne(0)).to(at::kDouble).mean().item<double>();
    };
    constexpr double kByChance = 0.3 * 0.3 + 0.7 * 0.7;
    CHECK(std::abs(agree(one[3], later[3]) - kByChance) < 0.08);
    CHECK(std::abs(agree(one[3], other[3]) - kByChance) < 0.08);
    CHECK(std::abs(agree(one[3].narrow(0, 0, 12), one[3].narrow(0, 12, 12)) - kByChance) < 0.1);
    for (const auto& mask : random_masks(kernels, 2, 1, 17, 1.0)) CHECK(mask.eq(1).all().item<bool>());
  }

  TEST_CASE("F: ten steps match torch's AdamW on masked gradients; gradients are masked before the update") {
    const CpuOps ops;
    run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      const ChildShard given(world), drawn(world), by_hand(world);
      auto plain = child_options(ChildTuning::off);
      const auto theirs = make_optimizer({ops, given.params, plain});
      const auto ours = make_optimizer({ops, drawn.params, child_options(ChildTuning::task_free)});
      const auto masked = make_optimizer({ops, by_hand.params, plain});
      for (int step = 0; step < kChildSteps; ++step) {
        auto gradients = given.rows("grad.", step);
        const auto masks = given.rows("mask_f.", step);
        for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i].mul_(masks[i]).div_(0.3);
        theirs->step(gradients, 1e-2, 1.0);
        ours->step(given.rows("grad.", step), 1e-2, 1.0);
        auto others = given.rows("grad.", step);
        for (std::size_t i = 0; i < others.size(); ++i)
          mask_at_random(ops, by_hand.params[i], others[i], child_options(ChildTuning::task_free).child_tuning,
                         step + 1);
        masked->step(others, 1e-2, 1.0);
      }
      CHECK(given.error("f_torch_adamw", kChildSteps) < kChildTolerance);
      for (std::size_t i = 0; i < drawn.params.size(); ++i)
        CHECK(same_bits(drawn.params[i].master_weight.get(), by_hand.params[i].master_weight.get()));
    });
  }

  TEST_CASE("every optimizer supports Child-Tuning; frozen parameters have no states") {
    const CpuOps ops;
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      for (const std::string kind : {"adamw", "anyprecision", "lion", "sgd", "adafactor", "adamw8bit", "muon"}) {
        for (const auto mode : {ChildTuning::task_free, ChildTuning::task_driven}) {
          ChildShard shard(world);
          shard.params[1].layout.trainable = false;
          const auto before = shard.params[1].master_weight.get().clone();
          auto options = child_options(mode);
          options.kind = kind;
          options.momentum = kind == "muon" ? 0.95 : 0;
          const auto ranks = make_host_collectives(world, ops);
          const auto optimizer = make_optimizer({ops, shard.params, options, &*ranks});
          auto gradients = shard.rows("grad.", 0);
          gradients[1] = at::Tensor();
          if (mode == ChildTuning::task_driven) {
            optimizer->add_fisher(all_params(*optimizer), gradients, std::vector<double>(gradients.size(), 1.0));
            CHECK(optimizer->choose_child(world).elements == 13 + 24 * 33);
          }
          optimizer->step(gradients, 1e-2, 1.0);
          CHECK(optimizer->states(1).empty());
          CHECK(optimizer->step_state(1) == StepState::none);
          CHECK(same_bits(shard.params[1].master_weight.get(), before));
          CHECK(!shard.params[3].master_weight.get().equal(fixture("inputs", "param.layer.1.weight")));
        }
      }
    });
  }

  TEST_CASE("kChildTunings: accepts all names; the error lists the choices") {
    CHECK(parse_value(kChildTunings, "f", "--child-tuning") == ChildTuning::task_free);
    CHECK(parse_value(kChildTunings, "ChildTuning-D", "--child-tuning") == ChildTuning::task_driven);
    CHECK(to_string(parse_value(kChildTunings, "D", "--child-tuning")) == "d");
    CHECK_THROWS_WITH_AS(parse_value(kChildTunings, "e", "--child-tuning"),
                         "--child-tuning is 'e', choose from off, f, d", UsageError);
  }
}

}  // namespace fsdp::test
