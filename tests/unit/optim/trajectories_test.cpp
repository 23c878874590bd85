// Twenty steps of each optimizer against the libraries' own: torch, torchdistx, bitsandbytes. The tolerance is the
// fixtures' (tests/fixtures/training/README.md): float32 updates in another order, at learning rates up to 1e-2.
#include "tests/support/torch_doctest.hpp"

#include "lib/ops/aten_ops.hpp"
#include "lib/ops/cpu_ops.hpp"
#include "lib/optim/optimizer.hpp"
#include "tests/support/read_tensor.hpp"
#include "tests/support/tensor_compare.hpp"

namespace fsdp::test {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(FSDP_FIXTURE_DIR) / "training/optim_traj";
const std::vector<std::string> kNames{"bias", "blocks", "emb", "norm", "odd"};
constexpr double kTolerance = 1e-6;

struct Trajectory {
  const char* file;
  double lr;
  OptimizerOptions options;
  std::vector<std::pair<std::string, std::string>> keys;  ///< ours, and the fixture's
};

OptimizerOptions base(OptimizerKind kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.beta2 = kind == OptimizerKind::lion ? 0.99 : 0.95;
  options.weight_decay = kind == OptimizerKind::sgd ? 0.01 : 0.1;
  options.momentum = kind == OptimizerKind::sgd ? 0.9 : 0;
  return options;
}

std::vector<Trajectory> trajectories() {
  auto nesterov = base(OptimizerKind::sgd);
  nesterov.nesterov = true;
  return {{"adamw_torch", 1e-2, base(OptimizerKind::adamw), {{"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}}},
          {"anyprecision_mixed", 1e-2, base(OptimizerKind::anyprecision), {{"exp_avg", "exp_avg"}}},
          {"bnb_lion32", 1e-3, base(OptimizerKind::lion), {{"exp_avg", "__bnb_optimizer_quant_state__.state1"}}},
          {"sgd_momentum", 1e-2, base(OptimizerKind::sgd), {{"momentum_buffer", "momentum_buffer"}}},
          {"sgd_nesterov_dampening0", 1e-2, nesterov, {{"momentum_buffer", "momentum_buffer"}}}};
}

/// The rows of each parameter that one of `ranks` has.
struct Shard {
  Shard(const SafetensorsReader& inputs, int ranks, int rank) {
    for (const auto& name : kNames) {
      const auto param = read_tensor(inputs, "param." + name), grads = read_tensor(inputs, "grad." + name);
      const auto per_rank = (param.size(0) + ranks - 1) / ranks;
      first.push_back(std::min(rank * per_rank, param.size(0)));
      count.push_back(std::min(per_rank, param.size(0) - first.back()));
      params.push_back({param.narrow(0, first.back(), count.back()).clone(), true});
      gradients.push_back(grads.narrow(1, first.back(), count.back()).contiguous());
    }
  }
  at::Tensor of(const at::Tensor& whole, std::size_t i) const { return whole.narrow(0, first[i], count[i]); }

  std::vector<std::int64_t> first, count;
  std::vector<OptimizerParam> params;
  std::vector<at::Tensor> gradients;
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

void check_shard(const Ops& ops, const Trajectory& want, const Shard& shard, Worst& worst) {
  const SafetensorsReader truth(kFolder / (std::string(want.file) + ".safetensors"));
  const auto optimizer = make_optimizer(ops, shard.params, want.options);
  for (std::int64_t step = 0; step < 20; ++step) {
    std::vector<at::Tensor> gradients;
    // As with a loss scale of 4.
    for (const auto& all : shard.gradients) gradients.push_back(all[step] * 4);
    optimizer->step(gradients, want.lr, 4.0);
    if (step != 0 && step != 19) continue;
    const auto prefix = step == 0 ? "step1.param." : "step20.param.";
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      const auto rows = shard.of(read_tensor(truth, prefix + kNames[i]), i);
      worst(largest_difference(shard.params[i].master_weight, rows));
    }
  }
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    for (const auto& [ours, theirs] : want.keys) {
      const auto state = read_tensor(truth, "step20.state." + kNames[i] + "." + theirs);
      CHECK(largest_difference(optimizer->state(ours, i), shard.of(state, i)) < kTolerance);
    }
  }
}

}  // namespace

TEST_SUITE("optim/trajectories") {
  TEST_CASE("20 steps on the rows of 1 to 4 ranks, by the kernels and by ATen") {
    const SafetensorsReader inputs(kFolder / "inputs.safetensors");
    const AtenOps aten(at::kCPU);
    const CpuOps kernels;
    for (const auto& want : trajectories()) {
      CAPTURE(want.file);
      Worst worst;
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int rank = 0; rank < ranks; ++rank) check_shard(kernels, want, Shard(inputs, ranks, rank), worst);
      }
      CHECK(worst.value < kTolerance);
      Worst worst_of_aten;
      check_shard(aten, want, Shard(inputs, 1, 0), worst_of_aten);
      CHECK(worst_of_aten.value < kTolerance);
      MESSAGE(std::string(want.file), ": ", worst.value, ", by ATen ", worst_of_aten.value);
    }
  }

  TEST_CASE("a shard's update has the bits of the whole parameter's") {
    const SafetensorsReader inputs(kFolder / "inputs.safetensors");
    const CpuOps kernels;
    for (const auto& want : trajectories()) {
      CAPTURE(want.file);
      const Shard whole(inputs, 1, 0), part(inputs, 3, 1);
      for (const auto* shard : {&whole, &part}) {
        const auto optimizer = make_optimizer(kernels, shard->params, want.options);
        for (std::int64_t step = 0; step < 5; ++step) {
          std::vector<at::Tensor> gradients;
          for (const auto& all : shard->gradients) gradients.push_back(all[step]);
          optimizer->step(gradients, want.lr, 1.0);
        }
      }
      for (std::size_t i = 0; i < kNames.size(); ++i) {
        CHECK(same_bits(part.of(whole.params[i].master_weight, i), part.params[i].master_weight));
      }
    }
  }

  TEST_CASE("anyprecision: bf16 moments and Kahan's compensation by the kernels as by ATen, to a bf16 step") {
    const SafetensorsReader inputs(kFolder / "inputs.safetensors");
    const AtenOps aten(at::kCPU);
    const CpuOps kernels;
    for (const auto& [momentum, variance] : {std::pair(at::kBFloat16, at::kBFloat16), {at::kBFloat16, at::kFloat}}) {
      for (const bool kahan : {false, true}) {
        auto options = base(OptimizerKind::anyprecision);
        options.momentum_dtype = momentum;
        options.variance_dtype = variance;
        options.kahan = kahan;
        std::vector<std::vector<at::Tensor>> results;
        for (const Ops* ops : {static_cast<const Ops*>(&kernels), static_cast<const Ops*>(&aten)}) {
          const Shard shard(inputs, 1, 0);
          const auto optimizer = make_optimizer(*ops, shard.params, options);
          std::vector<at::Tensor> gradients;
          for (const auto& all : shard.gradients) gradients.push_back(all[0]);
          optimizer->step(gradients, 1e-2, 1.0);
          auto& result = results.emplace_back();
          for (std::size_t i = 0; i < kNames.size(); ++i) {
            result.push_back(shard.params[i].master_weight);
            for (const auto& key : optimizer->state_keys()) result.push_back(optimizer->state(key, i));
          }
        }
        for (std::size_t i = 0; i < results[0].size(); ++i) {
          // A step of bf16 in a moment (2^-8) moves an update of lr by as much.
          CHECK(largest_difference(results[0][i], results[1][i]) <=
                std::max(1e-2 / 128, results[1][i].abs().max().item<double>() / 128));
        }
      }
    }
  }
}

}  // namespace fsdp::test
