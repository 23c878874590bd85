// Ten steps of adapters on 4-bit weights, against peft and bitsandbytes (tests/fixtures/training/README.md).
#include "tests/unit/engine/fsdp/stored_nf4.hpp"

#include <cmath>
#include <optional>

#include "lib/compute/ops/nf4.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

// From the fixtures' README: float64 in numpy differs by 1.4e-6 and 2.9e-6; one adapter element has a gradient near
// eps.
constexpr double kLoss = 5e-6, kNorm = 1e-5, kAdapter = 2e-4;
// bf16 rounds each activation: float64 with the same weights differs by up to 4.1e-3.
constexpr double kLossInBf16 = 0.02;

struct QloraRun {
  const char* name;
  const char* base;  ///< quantized, in tests/fixtures/training/qlora; empty: llama_nano, quantized here
  bool double_quant;
  at::ScalarType precision;
  std::optional<at::ScalarType> compute_dtype;
};

std::filesystem::path qlora_folder() { return std::filesystem::path(FSDP_FIXTURE_DIR) / "training/qlora"; }

at::Tensor float32_of_base(const std::string& name) {
  return read_tensor(SafetensorsReader(numerics_folder("llama_nano") / "model.safetensors"), name);
}

std::vector<at::Tensor> weights_of(const QloraRun& run, const ModelConfig& config) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> absmax;
  std::optional<SafetensorsReader> stored;
  if (*run.base != '\0') stored.emplace(qlora_folder() / run.base);
  for (const auto& spec : quantized_table(config, {true, run.double_quant})) {
    if (spec.stands_for < 0) {
      const bool there = stored && stored->tensors().contains(spec.name);
      weights.push_back((there ? read_tensor(*stored, spec.name) : float32_of_base(spec.name)).to(at::kFloat));
    } else if (stored) {
      weights.push_back(stored_part(*stored, spec));
    } else if (spec.stands_for > 0) {
      const auto made = quantize_nf4(float32_of_base(spec.name).view({-1}));
      weights.push_back(made.codes);
      absmax.push_back(made.absmax);
    } else {
      weights.push_back(absmax.front());
      absmax.erase(absmax.begin());
    }
  }
  return weights;
}

Setup ten_quantized_steps(const QloraRun& run) {
  at::set_num_threads(1);
  Setup setup;
  setup.model = read_model_config(numerics_folder("llama_nano"));
  setup.lora = {8, 16, 0, {"all"}, false, false};
  setup.quantize = {true, run.double_quant};
  setup.compute_dtype = run.compute_dtype;
  setup.weights = weights_of(run, setup.model);
  const SafetensorsReader initial(std::filesystem::path(FSDP_FIXTURE_DIR) /
                                  "training/lora/all/adapter_initial.safetensors");
  for (const auto& spec : adapter_table(setup.model, setup.lora))
    setup.weights.push_back(read_tensor(initial, "base_model.model." + spec.name));
  const auto rows = peft_batch();
  setup.rows = [rows](int) { return rows; };
  setup.steps = 10;
  setup.lr = 1e-2;
  setup.clip = 1e9;
  setup.optimizer.weight_decay = 0.01;
  if (run.precision != at::kFloat) setup.policy.precision = {run.precision, run.precision, at::kFloat, at::kFloat};
  return setup;
}

struct QloraErrors {
  double loss = 0, norm = 0;
  Outcome outcome;
};

QloraErrors compare(const QloraRun& run, const Setup& setup) {
  const auto want = fsdp::test::read_json(qlora_folder() / "expected.json").at("qlora").at("runs").at(run.name);
  QloraErrors worst;
  worst.outcome = train(setup);
  const auto& got = worst.outcome;
  for (std::size_t s = 0; s < got.losses.size(); ++s) {
    worst.loss = std::max(worst.loss, std::abs(got.losses[s] - want.at("loss")[s].get<double>()));
    worst.norm = std::max(worst.norm, relative(got.norms[s], want.at("grad_norm")[s].get<double>()));
  }
  const auto adapters = adapter_table(setup.model, setup.lora).size();
  for (std::size_t i = 0; i + adapters < setup.weights.size(); ++i) {
    if (setup.weights[i].scalar_type() == at::kByte) CHECK(got.parameters[i].equal(setup.weights[i]));
  }
  return worst;
}

double adapters_apart(const QloraErrors& result, const Setup& setup, const char* folder) {
  const SafetensorsReader theirs(qlora_folder() / folder / "adapter_model.safetensors");
  const auto adapters = adapter_table(setup.model, setup.lora);
  const auto first = setup.weights.size() - adapters.size();
  double worst = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const auto expected = read_tensor(theirs, "base_model.model." + adapters[i].name);
    worst = std::max(worst, (result.outcome.parameters[first + i] - expected).abs().max().item<double>());
  }
  return worst;
}

const QloraRun kDouble{"double_f32", "quantised_f32_base.safetensors", true, at::kFloat, {}};
const QloraRun kSingle{"single_f32", "", false, at::kFloat, {}};

}  // namespace

TEST_SUITE("fsdp/QLoRA against peft and bitsandbytes") {
  TEST_CASE("float32 on 1 to 4 ranks, with every strategy and recomputation") {
    for (const auto& run : {kDouble, kSingle}) {
      double loss = 0, norm = 0, adapter = 0;
      for_every_layout(ten_quantized_steps(run), [&](Setup setup) {
        setup.policy.cpu_offload = setup.ranks == 2 && setup.peer_memory;
        const auto result = compare(run, setup);
        loss = std::max(loss, result.loss);
        norm = std::max(norm, result.norm);
        if (run.double_quant) adapter = std::max(adapter, adapters_apart(result, setup, "adapter_double_f32"));
      });
      CHECK(loss < kLoss);
      CHECK(norm < kNorm);
      CHECK(adapter < kAdapter);
      MESSAGE(std::string(run.name), ": losses ", loss, ", norms ", norm, ", adapters ", adapter);
    }
  }

  TEST_CASE("weights, activations and products in bf16; products alone") {
    const char* base = "checkpoint_double/model.safetensors";
    for (const auto& run : {QloraRun{"double_bf16", base, true, at::kBFloat16, {}},
                            QloraRun{"double_bf16_kbit", base, true, at::kFloat, at::kBFloat16}}) {
      for (const int ranks : {1, 3}) {
        auto setup = ten_quantized_steps(run);
        setup.ranks = ranks;
        const auto result = compare(run, setup);
        CHECK(result.loss < kLossInBf16);
        MESSAGE(std::string(run.name), ": losses ", result.loss, ", norms ", result.norm);
      }
    }
  }

  TEST_CASE("gathers transfer 4-bit codes and their scales") {
    auto setup = ten_quantized_steps(kDouble);
    setup.steps = 1;
    setup.ranks = 2;
    auto dense = setup;
    dense.quantize = {};
    dense.weights.clear();
    for (const auto& spec : parameter_table(setup.model)) dense.weights.push_back(float32_of_base(spec.name));
    const auto adapters = adapter_table(setup.model, setup.lora).size();
    dense.weights.insert(dense.weights.end(), setup.weights.end() - static_cast<std::ptrdiff_t>(adapters),
                         setup.weights.end());
    std::int64_t matrices = 0, codes = 0;
    for (const auto& spec : quantized_table(setup.model, setup.quantize)) {
      if (spec.stands_for > 0) matrices += spec.stands_for;
      if (spec.stands_for < 0) continue;
      const auto rows = shard_range(spec.shape[0], 2, 0).padded_rows;
      codes += rows * (spec.shape.size() > 1 ? spec.shape[1] : 1) * (spec.storage == Storage::byte ? 1 : 4);
    }
    const auto few = train(setup).counts[0].shard, many = train(dense).counts[0].shard;
    CHECK(few.all_gathers == many.all_gathers);
    // A block is gathered twice per step; the lowest block's adapters are trained, too.
    CHECK(many.bytes - few.bytes == 2 * (4 * matrices / 2 - codes));
    CHECK(static_cast<double>(codes) < 0.54 * static_cast<double>(matrices) / 2);
  }
}
