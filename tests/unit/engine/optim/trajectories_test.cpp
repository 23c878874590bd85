// Compares twenty steps of each optimizer with the original libraries: torch, torchdistx, bitsandbytes. The tolerance
// is that of the fixtures (tests/fixtures/training/README.md): float32 updates in a different order, with learning
// rates up to 1e-2.
#include "tests/support/torch_doctest.hpp"

#include <fmt/format.h>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/support/read_tensor.hpp"
#include "tests/support/tensor_compare.hpp"

namespace fsdp::test {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(FSDP_FIXTURE_DIR) / "training/optim_traj";
const std::vector<std::string> kNames{"bias", "blocks", "emb", "norm", "odd"};
constexpr double kTolerance = 1e-6, kToleranceOfMuon = 3e-3;

struct Trajectory {
  const char* file;
  double lr;
  OptimizerOptions options;
  at::ScalarType dtype = at::kFloat;  ///< type of the parameters, to which the gradients were rounded, too
};

OptimizerOptions base(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.beta2 = kind == "lion" || kind == "lion8bit" ? 0.99 : 0.95;
  options.weight_decay = kind == "sgd" ? 0.01 : 0.1;
  options.momentum = kind == "sgd" ? 0.9 : 0;
  return options;
}

OptimizerOptions nesterov() {
  auto options = base("sgd");
  options.nesterov = true;
  return options;
}

OptimizerOptions adafactor(double weight_decay, const AdafactorOptions& variant = {}) {
  auto options = base("adafactor");
  options.weight_decay = weight_decay;
  options.adafactor = variant;
  return options;
}

/// bitsandbytes and torchao quantise all states of this size.
OptimizerOptions eight_bit(std::int64_t least_elements, const std::string& kind = "adamw8bit") {
  auto options = base(kind);
  options.eight_bit = {least_elements, true};
  return options;
}

OptimizerOptions bf16_with_kahan() {
  auto options = base("anyprecision");
  options.momentum_dtype = at::kBFloat16;
  options.kahan = true;
  return options;
}

/// torch's muon, which only handles matrices.
OptimizerOptions muon(MuonAdjustLr adjust_lr) {
  auto options = base("muon");
  options.momentum = 0.95;
  options.muon_adjust_lr = adjust_lr;
  return options;
}

std::vector<Trajectory> trajectories() {
  return {{"adamw_torch", 1e-2, base("adamw")},
          {"anyprecision_mixed", 1e-2, base("anyprecision")},
          {"bnb_lion32", 1e-3, base("lion")},
          {"bnb_adamw8bit", 1e-2, eight_bit(4096)},
          {"bnb_adamw8bit_all", 1e-2, eight_bit(1)},
          {"bnb_lion8bit", 1e-3, eight_bit(4096, "lion8bit")},
          {"ao_adamw8bit", 1e-2, eight_bit(4096, "torchao-adamw8bit")},
          {"ao_adamw4bit", 1e-2, eight_bit(4096, "torchao-adamw4bit")},
          {"sgd_momentum", 1e-2, base("sgd")},
          {"sgd_nesterov_dampening0", 1e-2, nesterov()},
          {"adafactor_torch", 1e-2, adafactor(0)},
          {"adafactor_torch_wd", 5e-2, adafactor(0.1)},
          {"adafactor_hf_relative", 1, adafactor(0, {true, true, false, true})},
          {"adafactor_hf_warmup", 1, adafactor(0.1, {true, true, true, true})},
          {"adafactor_hf_fixed", 1e-2, adafactor(0, {true})},
          {"adafactor_hf_fixed_scaled_beta1", 1e-2, adafactor(0.1, {true, false, false, true, 0.9})},
          {"anyprecision_bf16", 1e-2, base("anyprecision"), at::kBFloat16},
          {"anyprecision_bf16_kahan", 1e-2, bf16_with_kahan(), at::kBFloat16},
          {"anyprecision_bf16_kahan_smalllr", 1e-4, bf16_with_kahan(), at::kBFloat16},
          {"muon_original", 2e-2, muon(MuonAdjustLr::original)},
          {"muon_match_rms_adamw", 1e-2, muon(MuonAdjustLr::match_rms_adamw)}};
}

/// The rows of each parameter on one of `ranks` ranks, and an optimizer for them.
struct Shard {
  Shard(const SafetensorsReader& inputs, int ranks, int rank, at::ScalarType dtype = at::kFloat) {
    for (const auto& name : kNames) {
      const auto param = read_tensor(inputs, "param." + name), grads = read_tensor(inputs, "grad." + name);
      const auto range = shard_range(param.size(0), ranks, rank);
      auto rows = param.sizes().vec();
      rows[0] = range.padded_rows;
      const auto master_weight = at::zeros(rows, dtype);
      of(master_weight, range).copy_(param.narrow(0, range.first_row, range.num_rows));
      params.push_back({master_weight, true, {name, param.sizes().vec()}, range, false, true});
      rows.insert(rows.begin(), grads.size(0));
      gradients.push_back(at::zeros(rows));
      gradients.back().narrow(1, 0, range.num_rows).copy_(grads.narrow(1, range.first_row, range.num_rows).to(dtype));
    }
  }
  static at::Tensor of(const at::Tensor& padded, const ShardRange& range) {
    return padded.narrow(0, 0, range.num_rows);
  }
  at::Tensor weights(std::size_t i) const { return of(params[i].master_weight.get(), params[i].range); }
  at::Tensor part_of(const at::Tensor& whole, std::size_t i) const {
    return whole.narrow(0, params[i].range.first_row, params[i].range.num_rows);
  }
  /// Gradients as with a loss scale of 4.
  void step(Optimizer& optimizer, double lr) const {
    std::vector<at::Tensor> scaled;
    for (const auto& all : gradients) scaled.push_back(all[optimizer.steps()] * 4);
    optimizer.step(scaled, lr, 4.0);
  }

  std::vector<OptimizerParam> params;
  std::vector<at::Tensor> gradients;  ///< of all steps
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Largest difference of parameters. If the moments are codes, a difference in the last bit of a moment may select the
/// neighbouring code, which changes the update by less than kOfCode; two such elements are ignored.
double parameter_difference(const at::Tensor& mine, const at::Tensor& rows, const std::string& kind) {
  constexpr std::int64_t kIgnored = 2;
  constexpr double kOfCode = 1e-3;
  const auto largest = largest_difference(mine, rows);
  if (!optimizer_type(kind).has("min-8bit-size") || mine.numel() <= kIgnored || largest >= kOfCode) return largest;
  const auto apart = (mine.to(at::kDouble) - rows.to(at::kDouble)).abs().flatten();
  return std::get<0>(apart.sort(0, true))[kIgnored].item<double>();
}

/// Compares some rows of a whole tensor, as a fraction of the tolerance. torch rounds the last numel % 32 elements of a
/// 16-bit moment twice, so these may differ by a step of bf16; all others are equal.
double bf16_error(const at::Tensor& mine, const at::Tensor& rows, const at::Tensor& whole) {
  const auto difference = largest_difference(mine, rows);
  if (whole.numel() % 32 == 0) return difference == 0 ? 0 : 2 * kTolerance;
  return kTolerance * difference / (whole.to(at::kFloat).abs().max().item<double>() / 128 + 1e-30);
}

/// Largest difference of parameters and, relative to the largest value if that is above 1, of states.
double check_shard(const Ops& ops, const Trajectory& want, const Shard& shard, TensorCollectives& ranks) {
  const SafetensorsReader truth(kFolder / (std::string(want.file) + ".safetensors"));
  const auto optimizer = make_optimizer({ops, shard.params, want.options, &ranks});
  double worst = 0;
  for (int step = 1; step <= 20; ++step) {
    shard.step(*optimizer, want.lr);
    if (step != 1 && step != 20) continue;
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      if (!truth.tensors().contains("step1.param." + kNames[i])) continue;
      const auto whole = read_tensor(truth, fmt::format("step{}.param.{}", step, kNames[i]));
      const auto rows = shard.part_of(whole, i);
      worst = std::max(worst, want.dtype == at::kBFloat16
                                  ? bf16_error(shard.weights(i), rows, whole)
                                  : parameter_difference(shard.weights(i), rows, want.options.kind));
    }
  }
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (!truth.tensors().contains("step1.param." + kNames[i])) continue;
    for (const auto& state : optimizer->states(i)) {
      // The compensation is the rounding error of a parameter, so it changes entirely with the parameter's last bit.
      if (state.constant || state.key == "compensation") continue;
      // bitsandbytes uses another name for Lion.
      const auto* key = want.options.kind == "lion" ? "__bnb_optimizer_quant_state__.state1" : state.key.c_str();
      const auto theirs = read_tensor(truth, fmt::format("step20.state.{}.{}", kNames[i], key));
      CHECK(theirs.sizes() == at::IntArrayRef(state.shape));
      const auto rows = theirs.narrow(0, state.first_row, state.num_rows);
      const auto mine = state.values.get().narrow(0, 0, state.num_rows);
      if (mine.scalar_type() == at::kByte) {
        // A moment that differs in its last bit may get the neighbouring code.
        CHECK(mine.ne(rows).sum().item<std::int64_t>() <= 2);
        continue;
      }
      if (mine.scalar_type() == at::kBFloat16) {
        worst = std::max(worst, bf16_error(mine, rows, theirs));
        continue;
      }
      const auto difference = largest_difference(mine, rows);
      worst = std::max(worst, difference / std::max(1.0, theirs.abs().max().item<double>()));
    }
  }
  return worst;
}

/// The states of all ranks.
double check_ranks(const Ops& ops, const Trajectory& want, int num_ranks) {
  const SafetensorsReader inputs(kFolder / "inputs.safetensors");
  double worst = 0;
  run_thread_ranks(num_ranks, num_ranks, [&](ProcessGroup& world) {
    const auto ranks = make_host_collectives(world, ops);
    const auto mine = check_shard(ops, want, Shard(inputs, num_ranks, world.rank(), want.dtype), *ranks);
    const auto largest = world.all_reduce(mine, Reduce::max);
    if (world.rank() == 0) worst = largest;
  });
  return worst;
}

}  // namespace

TEST_SUITE("optim/trajectories") {
  TEST_CASE("20 steps on 1 to 4 ranks, by the kernels and by ATen, match the libraries") {
    const DeviceOps aten(at::kCPU);
    const CpuOps kernels;
    for (const auto& want : trajectories()) {
      CAPTURE(want.file);
      double worst = 0;
      for (int ranks = 1; ranks <= 4; ++ranks) worst = std::max(worst, check_ranks(kernels, want, ranks));
      const auto tolerance = want.options.kind == "muon" ? kToleranceOfMuon : kTolerance;
      CHECK(worst < tolerance);
      const auto worst_of_aten = check_ranks(aten, want, 2);
      CHECK(worst_of_aten < tolerance);
      MESSAGE(std::string(want.file), ": ", worst, ", by ATen ", worst_of_aten);
    }
  }

  TEST_CASE("the code tables equal those of bitsandbytes and torchao bit for bit") {
    const SafetensorsReader maps(kFolder / "qmaps.safetensors");
    for (const auto& [format, name] : {std::pair(MomentFormat::bitsandbytes_8bit, std::string("bnb")),
                                       {MomentFormat::torchao_8bit, "ao8"},
                                       {MomentFormat::torchao_4bit, "ao4"}}) {
      CHECK(same_bits(moment_numbers(format, true), read_tensor(maps, name + "_signed")));
      CHECK(same_bits(moment_numbers(format, false), read_tensor(maps, name + "_unsigned")));
    }
  }

  TEST_CASE("8-bit moments that overflow remain valid codes") {
    const CpuOps kernels;
    const std::vector<at::Tensor> gradients{at::full({2, 300}, 1e30f)};  // the square is infinite
    const auto optimizer = make_optimizer({kernels, {whole_param(at::zeros({2, 300}))}, eight_bit(1)});
    optimizer->step(gradients, 1e-2, 1.0);
    optimizer->step(gradients, 1e-2, 1.0);
    CHECK(optimizer->states(0)[2].values.get().numel() == 256);  // qmap1 follows the states that are updated
    CHECK(same_bits(optimizer->states(0)[2].values.get(), moment_numbers(MomentFormat::bitsandbytes_8bit, true)));
  }

  TEST_CASE("the bits of an update do not depend on the number of ranks") {
    const SafetensorsReader inputs(kFolder / "inputs.safetensors");
    const CpuOps kernels;
    for (const auto& want : trajectories()) {
      CAPTURE(want.file);
      const Shard whole(inputs, 1, 0, want.dtype);
      const auto optimizer = make_optimizer({kernels, whole.params, want.options});
      for (int step = 0; step < 5; ++step) whole.step(*optimizer, want.lr);
      run_thread_ranks(3, 3, [&](ProcessGroup& world) {
        const Shard part(inputs, 3, world.rank(), want.dtype);
        const auto ranks = make_host_collectives(world, kernels);
        const auto mine = make_optimizer({kernels, part.params, want.options, ranks.get()});
        for (int step = 0; step < 5; ++step) part.step(*mine, want.lr);
        for (std::size_t i = 0; i < kNames.size(); ++i) {
          const auto expected = part.part_of(whole.params[i].master_weight.get(), i);
          // Adafactor adds float64 numbers in a different order; ATen's AdamW rounds the last elements of a tensor
          // differently.
          const auto kind = want.options.kind;
          const bool by_aten =
              kind == "adamw" || kind == "muon" ||
              (optimizer_type(kind).has("min-8bit-size") && mine->states(i)[0].values.dtype() == at::kFloat);
          const bool rounds = by_aten || kind == "adafactor";
          CAPTURE(std::string(want.file));  // captures are per thread
          CAPTURE(kNames[i]);
          CHECK(largest_difference(expected, part.weights(i)) <= (rounds ? 1e-7 : 0.0));
        }
      });
    }
  }

  TEST_CASE("anyprecision: kernels and ATen agree on bf16 moments and compensation within a bf16 step") {
    const SafetensorsReader inputs(kFolder / "inputs.safetensors");
    const DeviceOps aten(at::kCPU);
    const CpuOps kernels;
    for (const auto& [momentum, variance] : {std::pair(at::kBFloat16, at::kBFloat16), {at::kBFloat16, at::kFloat}}) {
      for (const bool kahan : {false, true}) {
        auto options = base("anyprecision");
        options.momentum_dtype = momentum;
        options.variance_dtype = variance;
        options.kahan = kahan;
        std::vector<std::vector<at::Tensor>> results;
        for (const Ops* ops : {static_cast<const Ops*>(&kernels), static_cast<const Ops*>(&aten)}) {
          const Shard shard(inputs, 1, 0);
          const auto optimizer = make_optimizer({*ops, shard.params, options});
          std::vector<at::Tensor> gradients;
          for (const auto& all : shard.gradients) gradients.push_back(all[0]);
          optimizer->step(gradients, 1e-2, 1.0);
          auto& result = results.emplace_back();
          for (std::size_t i = 0; i < kNames.size(); ++i) {
            result.push_back(shard.params[i].master_weight.get());
            for (const auto& state : optimizer->states(i)) result.push_back(state.values.get());
          }
        }
        for (std::size_t i = 0; i < results[0].size(); ++i) {
          // A difference of one bf16 step (2^-8) in a moment changes an update of size lr by the same fraction.
          CHECK(largest_difference(results[0][i], results[1][i]) <=
                std::max(1e-2 / 128, results[1][i].abs().max().item<double>() / 128));
        }
      }
    }
  }
}

}  // namespace fsdp::test
