// Ten steps of LoRA, rsLoRA and DoRA against peft (tests/fixtures/training/README.md).
#include "tests/unit/engine/fsdp/family_files.hpp"

#include <cmath>

#include "lib/models/config/adapter_config.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

// From the fixtures: float64 in numpy differs from peft's float32 by up to 7e-7, 2e-6 and 4e-6.
constexpr double kLoss = 5e-6, kNorm = 1e-5, kAdapter = 2e-5, kLogits = 5e-5;
// bf16 rounds each activation; the loss of bf16 runs differs from float64's with the same weights by up to 0.02.
constexpr double kLossInBf16 = 0.03;

std::filesystem::path lora_folder() { return std::filesystem::path(FSDP_FIXTURE_DIR) / "training/lora"; }

struct Variant {
  const char* name;
  LoraConfig lora;
  double weight_decay, clip;
};

std::vector<Variant> variants() {
  return {{"all", {8, 16, 0, {"all"}, false, false}, 0.01, 1e9},
          {"qv_rslora_clip", {8, 16, 0, {"v_proj", "q_proj"}, true, false}, 0.0, 0.3},
          {"qv_dora", {4, 8, 0, {"q_proj", "v_proj"}, false, true}, 0.01, 1e9}};
}

at::Tensor of_adapter(const Variant& variant, const char* file, const std::string& name) {
  const SafetensorsReader stored(lora_folder() / variant.name / file);
  return read_tensor(stored, "base_model.model." + name);
}

Setup ten_steps(const Variant& variant) {
  at::set_num_threads(1);
  Setup setup;
  const auto folder = numerics_folder("llama_nano");
  setup.model = read_model_config(folder);
  setup.lora = variant.lora;
  const SafetensorsReader base(folder / "model.safetensors");
  for (const auto& spec : parameter_table(setup.model)) setup.weights.push_back(read_tensor(base, spec.name));
  for (const auto& spec : adapter_table(setup.model, variant.lora))
    setup.weights.push_back(of_adapter(variant, "adapter_initial.safetensors", spec.name));
  const auto rows = peft_batch();
  setup.rows = [rows](int) { return rows; };
  setup.steps = 10;
  setup.lr = 1e-2;
  setup.clip = variant.clip;
  setup.optimizer.weight_decay = variant.weight_decay;
  return setup;
}

struct Errors {
  double loss = 0, norm = 0, adapter = 0;
};

Errors errors_of(const Variant& variant, const Setup& setup, const char* precision) {
  const auto want = read_json(lora_folder() / "expected.json").at("variants").at(variant.name).at(precision);
  const auto got = train(setup);
  Errors worst;
  for (std::size_t s = 0; s < got.losses.size(); ++s) {
    worst.loss = std::max(worst.loss, std::abs(got.losses[s] - want.at("loss")[s].get<double>()));
    worst.norm = std::max(worst.norm, relative(got.norms[s], want.at("grad_norm")[s].get<double>()));
  }
  const auto base = parameter_table(setup.model).size();
  const auto adapters = adapter_table(setup.model, variant.lora);
  for (std::size_t i = 0; i < base; ++i) {
    const bool kept =
        setup.policy.precision.param_dtype != at::kFloat || same_bits(got.parameters[i], setup.weights[i]);
    CHECK(kept);
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const auto theirs = of_adapter(variant, "adapter_model.safetensors", adapters[i].name);
    worst.adapter = std::max(worst.adapter, (got.parameters[base + i] - theirs).abs().max().item<double>());
  }
  return worst;
}

}  // namespace

TEST_SUITE("fsdp/LoRA against peft") {
  TEST_CASE("losses, norms and adapters of ten steps on 1 to 4 ranks, with every strategy and recomputation") {
    for (const auto& variant : variants()) {
      Errors worst;
      for_every_layout(ten_steps(variant), [&](const Setup& setup) {
        const auto errors = errors_of(variant, setup, "f32");
        worst.loss = std::max(worst.loss, errors.loss);
        worst.norm = std::max(worst.norm, errors.norm);
        worst.adapter = std::max(worst.adapter, errors.adapter);
      });
      CHECK(worst.loss < kLoss);
      CHECK(worst.norm < kNorm);
      CHECK(worst.adapter < kAdapter);
      MESSAGE(std::string(variant.name), ": losses ", worst.loss, ", norms ", worst.norm, ", adapters ", worst.adapter);
    }
  }

  TEST_CASE("peft's own files: the logits of the merged model") {
    for (const auto& variant : variants()) {
      CHECK(read_adapter_config(lora_folder() / variant.name).lora.scale() == variant.lora.scale());
      auto setup = ten_steps(variant);
      setup.steps = 0;
      const auto adapters = adapter_table(setup.model, read_adapter_config(lora_folder() / variant.name).lora);
      setup.weights.resize(parameter_table(setup.model).size());
      for (const auto& spec : adapters)
        setup.weights.push_back(of_adapter(variant, "adapter_model.safetensors", spec.name));
      const SafetensorsReader stored(lora_folder() / variant.name / "merged_logits.safetensors");
      const auto theirs = read_tensor(stored, stored.tensors().begin()->first);
      // Row 1 ends at its 21st id; logits of padding do not matter.
      const auto apart = (all_logits(setup).view(theirs.sizes()) - theirs).abs();
      const auto difference = std::max(apart[0].max().item<double>(), apart[1].narrow(0, 0, 21).max().item<double>());
      CHECK(difference < kLogits);
      MESSAGE(std::string(variant.name), ": logits ", difference);
    }
  }

  TEST_CASE("a base in bf16 with adapters in float32") {
    for (const auto& variant : variants()) {
      for (const int ranks : {1, 2}) {
        auto setup = ten_steps(variant);
        setup.ranks = ranks;
        setup.policy.precision = {at::kBFloat16, at::kBFloat16, at::kFloat, at::kFloat};
        const auto errors = errors_of(variant, setup, "bf16_base");
        CHECK(errors.loss < kLossInBf16);
        MESSAGE(std::string(variant.name), " in bf16: losses ", errors.loss);
      }
    }
  }

  TEST_CASE("GPT-2: five steps of LoRA, rsLoRA and DoRA on 1 to 4 ranks, and the merged model's logits") {
    const std::vector<Variant> of_gpt2{{"all", {4, 8, 0, {"all-linear"}, false, false}, 0.01, 1e9},
                                       {"attn_dora", {4, 8, 0, {"c_attn"}, false, true}, 0.01, 1e9},
                                       {"proj_rslora", {4, 8, 0, {"c_proj"}, true, false}, 0.01, 1e9}};
    for (const auto& variant : of_gpt2) {
      INFO(std::string(variant.name));
      const auto folder = std::filesystem::path(FSDP_FIXTURE_DIR) / "training/lora_gpt2" / variant.name;
      const auto want = read_json(folder / "expected.json");
      const auto stored = read_adapter_config(folder).lora;
      CHECK(stored.scale() == variant.lora.scale());
      const auto with_adapter = [&](int steps, const char* file) {
        auto setup = steps_on("gpt2", "b", steps);
        setup.lora = steps > 0 ? variant.lora : stored;
        setup.lr = 1e-2;
        setup.optimizer.weight_decay = variant.weight_decay;
        const SafetensorsReader parts(folder / file);
        for (const auto& spec : adapter_table(setup.model, setup.lora))
          setup.weights.push_back(read_tensor(parts, "base_model.model." + spec.name));
        return setup;
      };
      Errors worst;
      for_every_layout(with_adapter(5, "adapter_initial.safetensors"), [&](const Setup& setup) {
        const auto got = train(setup);
        for (std::size_t s = 0; s < got.losses.size(); ++s) {
          worst.loss = std::max(worst.loss, std::abs(got.losses[s] - want.at("loss")[s].get<double>()));
          worst.norm = std::max(worst.norm, relative(got.norms[s], want.at("grad_norm")[s].get<double>()));
        }
        const SafetensorsReader after(folder / "adapter_model.safetensors");
        const auto table = adapter_table(setup.model, setup.lora);
        const auto first = setup.weights.size() - table.size();
        for (std::size_t i = 0; i < table.size(); ++i) {
          const auto theirs = read_tensor(after, "base_model.model." + table[i].name);
          worst.adapter = std::max(worst.adapter, (got.parameters[first + i] - theirs).abs().max().item<double>());
        }
      });
      const auto learned = with_adapter(0, "adapter_model.safetensors");
      const auto theirs = read_tensor(SafetensorsReader(folder / "merged_logits.safetensors"), "logits").squeeze(0);
      const auto logits = (all_logits(learned).narrow(0, 0, theirs.size(0)) - theirs).abs().max().item<double>();
      CHECK(worst.loss < kLoss);
      CHECK(worst.norm < kNorm);
      CHECK(worst.adapter < kAdapter);
      CHECK(logits < kLogits);
      MESSAGE(std::string(variant.name), " of GPT-2: losses ", worst.loss, ", norms ", worst.norm, ", adapters ",
              worst.adapter, ", logits ", logits);
    }
  }
}
