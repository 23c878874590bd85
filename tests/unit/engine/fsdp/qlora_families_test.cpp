// Adapters on 4-bit weights, for families with biases, post-norms, windows and caps, with q, k, v in one matrix, and
// for GPT-2, whose matrices the Hub stores transposed: against peft and bitsandbytes
// (tests/fixtures/training/README.md).
#include "lib/compute/ops/nf4.hpp"
#include "tests/unit/engine/fsdp/family_files.hpp"
#include "tests/unit/engine/fsdp/stored_nf4.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr const char* kFamiliesIn4Bits[] = {"qwen2_tied", "gemma2", "phi3_partial", "gpt2"};
constexpr QuantizeConfig kNestedNf4{true, true};

SafetensorsReader family_in_4_bits(const std::string& model, const char* file) {
  return SafetensorsReader(std::filesystem::path(FSDP_FIXTURE_DIR) / "training/qlora_families" / model / file);
}

/// Returns steps with weights quantized by bitsandbytes and peft's initial adapters.
Setup steps_in_4_bits(const std::string& model, int steps) {
  auto setup = steps_on(model, "b", steps);
  setup.lora = {4, 8, 0, {"all"}, false, false};
  setup.quantize = kNestedNf4;
  setup.lr = 1e-2;
  setup.weights.clear();
  const auto stored = family_in_4_bits(model, "quantised.safetensors");
  const SafetensorsReader whole(family_folder(model) / "model.safetensors");
  for (const auto& spec : quantized_table(setup.model, setup.quantize))
    setup.weights.push_back(spec.stands_for < 0 ? read_tensor(whole, spec.name).to(at::kFloat)
                                                : stored_part(stored, spec));
  const auto initial = family_in_4_bits(model, "adapter_initial.safetensors");
  for (const auto& spec : adapter_table(setup.model, setup.lora))
    setup.weights.push_back(read_tensor(initial, "base_model.model." + spec.name));
  return setup;
}

/// Returns the largest difference of the adapters' tensors, relative to the largest element or absolute.
double adapters_away(const Setup& setup, const std::vector<at::Tensor>& got, const SafetensorsReader& want,
                     bool to_largest) {
  const auto adapters = adapter_table(setup.model, setup.lora);
  const auto first = setup.weights.size() - adapters.size();
  Worst worst;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const auto expected = read_tensor(want, "base_model.model." + adapters[i].name);
    const auto away = (got[first + i] - expected).abs().max().item<double>();
    worst(to_largest ? away / expected.abs().max().item<double>() : away);
  }
  return worst.value;
}

}  // namespace

TEST_SUITE("fsdp/QLoRA of families against peft and bitsandbytes") {
  TEST_CASE("quantized matrices have bitsandbytes' codes and scales, bit for bit") {
    for (const std::string model : kFamiliesIn4Bits) {
      CAPTURE(model);
      const auto setup = steps_on(model, "b");
      const auto stored = family_in_4_bits(model, "quantised.safetensors");
      std::size_t matrices = 0;
      for (const auto& spec : quantized_table(setup.model, kNestedNf4)) {
        if (spec.stands_for <= 0) continue;
        INFO(spec.name);
        const SafetensorsReader whole(family_folder(model) / "model.safetensors");
        const auto stored_matrix = read_tensor(whole, spec.name).to(at::kFloat);
        const auto matrix = model == "gpt2" ? stored_matrix.t().contiguous() : stored_matrix;
        const auto made = quantize_nf4(matrix.view({-1}));
        const auto scales = quantize_scales(made.absmax);
        CHECK(same_bits(made.codes, stored_part(stored, spec)));
        CHECK(same_bits(scales.codes, read_tensor(stored, spec.name + ".absmax")));
        CHECK(same_bits(scales.absmax, read_tensor(stored, spec.name + ".nested_absmax")));
        ++matrices;
      }
      // The file has codes, scales, their scales and a description for each matrix, and only matrices that are 4-bit
      // here.
      CHECK(4 * matrices == stored.tensors().size());
    }
  }

  // float32 sums in another order: for Llama, float64 differs from peft by 1.4e-6 (losses) and 2.9e-6 (norms).
  TEST_CASE("losses within 5e-6, gradient norms and first gradients within 1e-5, adapters within 5e-5") {
    for (const std::string model : kFamiliesIn4Bits) {
      const auto want =
          read_json(std::filesystem::path(FSDP_FIXTURE_DIR) / "training/qlora_families" / model / "expected.json");
      const auto losses = want.at("loss").get<std::vector<double>>();
      const auto norms = want.at("grad_norm").get<std::vector<double>>();
      for (const int ranks : {1, 2, 3, 4}) {
        CAPTURE(model);
        CAPTURE(ranks);
        const auto in_layout = [&](int steps) {
          auto setup = steps_in_4_bits(model, steps);
          setup.ranks = ranks;
          setup.policy.sharding = kShardings[static_cast<std::size_t>(ranks) % 3];
          setup.policy.checkpoint_every = ranks == 2 ? 1 : 0;
          setup.policy.cpu_offload = ranks == 4;
          return setup;
        };
        const auto one = in_layout(1), all = in_layout(static_cast<int>(losses.size()));
        const auto first = train(one), got = train(all);
        Worst loss, norm;
        for (std::size_t s = 0; s < losses.size(); ++s) {
          loss(std::abs(got.losses[s] - losses[s]));
          norm(relative(got.norms[s], norms[s]));
        }
        const auto gradient =
            adapters_away(one, first.gradients, family_in_4_bits(model, "first_gradients.safetensors"), true);
        const auto adapter =
            adapters_away(all, got.parameters, family_in_4_bits(model, "adapter_model.safetensors"), false);
        CHECK(loss.value < 5e-6);
        CHECK(norm.value < 1e-5);
        CHECK(gradient < 1e-5);
        CHECK(adapter < 5e-5);  // AdamW divides small gradients by their own size
        if (ranks < 3)
          MESSAGE(model, ", ", ranks, " ranks: losses ", loss.value, ", norms ", norm.value, ", first gradients ",
                  gradient, ", adapters ", adapter);
      }
    }
  }

  TEST_CASE("omitting a family's bias, cap or window changes the loss also in 4 bits") {
    const auto apart = [](const std::string& model, const auto& change) {
      auto setup = steps_in_4_bits(model, 1);
      const auto right = train(setup).losses[0];
      change(setup);
      return std::abs(train(setup).losses[0] - right);
    };
    CHECK(apart("gemma2", [](Setup& s) { s.model.traits.attention_softcap = 0; }) > 1e-3);
    CHECK(apart("gemma2", [](Setup& s) { s.model.traits.window = 0; }) > 1e-3);
    CHECK(apart("qwen2_tied", [](Setup& s) {
            const auto table = quantized_table(s.model, s.quantize);
            for (std::size_t i = 0; i < table.size(); ++i) {
              if (table[i].name.ends_with("q_proj.bias")) s.weights[i] = at::zeros_like(s.weights[i]);
            }
          }) > 1e-3);
  }
}
