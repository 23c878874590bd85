// GPT-NeoX against transformers 5: GPTNeoXForCausalLM in float64 with the weights of wave().
#include "tests/unit/models/layers/decoder_rig.hpp"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

ModelConfig small_neox(bool is_parallel) {
  return model_config_from_hf({{"model_type", "gpt_neox"},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 4},
                               {"hidden_size", 32},
                               {"intermediate_size", 48},
                               {"vocab_size", 50},
                               {"max_position_embeddings", 32},
                               {"rotary_pct", 0.5},
                               {"use_parallel_residual", is_parallel}},
                              "test");
}

/// Element i of parameter k: 0.2 sin(0.37 i + k), plus 1 for the weights of norms.
at::Tensor wave(const ParameterSpec& spec, std::size_t k) {
  auto values = at::empty(spec.shape);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] =
        static_cast<float>(0.2 * std::sin(0.37 * static_cast<double>(i) + static_cast<double>(k)));
  return spec.init == Init::ones ? values + 1 : values;
}

MicroBatch two_rows() {
  MicroBatch batch;
  batch.rows = 2;
  batch.length = 10;
  batch.ids_N = at::empty({20}, at::kInt);
  batch.targets_N = at::empty({20}, at::kInt);
  for (int row = 0; row < 2; ++row) {
    for (int t = 0; t < 10; ++t) {
      batch.ids_N[row * 10 + t] = (7 * row + 3 * t * t) % 50;
      batch.targets_N[row * 10 + t] = (11 * row + 5 * t + 1) % 50;
    }
  }
  return batch;
}

struct Expected {
  bool is_parallel;
  double loss;
  std::array<double, 4> logits;  ///< the first of the last token
  std::array<double, 28> norms;  ///< of the gradients, in the order of the parameters
};
const std::array<Expected, 2> kExpected{
    {{true,
      94.85808934228832,
      {{0.785131619, 1.843605052, 1.971389118, 1.103975788}},
      {{5.8670752,  0.76070539, 0.56330057, 0.8537483, 1.0535583, 9.2761796, 1.1583517,
        51.027242,  3.6133636,  9.3235586,  1.9853585, 47.74481,  3.6133636, 0.7779518,
        0.80813483, 0.47799865, 0.28380817, 6.6849259, 1.2852733, 22.430095, 4.3440184,
        7.0790708,  1.6527632,  7.7797066,  4.3440184, 7.7138303, 8.9248059, 25.736393}}},
     {false,
      95.76064307440872,
      {{0.830202354, 1.831216085, 1.907794638, 1.021279592}},
      {{5.9777803,  0.73623358, 0.14653797, 1.2199979, 0.86116934, 10.109635, 0.72947225,
        59.81957,   4.7007703,  9.7864272,  2.0498132, 9.4102159,  5.4363034, 0.70075399,
        0.32444199, 0.59742255, 0.24956316, 6.9766549, 0.61616223, 25.206717, 5.4146901,
        17.333002,  3.9225718,  20.467888,  5.4967859, 8.4552006,  9.412415,  26.546402}}}}};

Model waving_model(const ModelConfig& config) {
  Model model(config);
  for (std::size_t k = 0; k < model.parameters.size(); ++k) {
    const auto& spec = model.decoder.parameters[k];
    model.parameters[k].zero_().narrow(0, 0, spec.shape[0]).copy_(wave(spec, k));
  }
  return model;
}

}  // namespace

TEST_SUITE("model/neox") {
  TEST_CASE("loss, logits and gradients are transformers', side by side and in sequence") {
    for (const auto& want : kExpected) {
      CAPTURE(want.is_parallel);
      const auto model = waving_model(small_neox(want.is_parallel));
      const auto batch = two_rows();
      std::vector<GradSlot> slots;
      CHECK(model.gradients(batch, 1.0, slots).loss_sum == doctest::Approx(want.loss).epsilon(1e-6));
      REQUIRE(slots.size() == want.norms.size());
      for (std::size_t i = 0; i < slots.size(); ++i) {
        INFO(model.decoder.parameters[i].name);
        CHECK(slots[i].grad.norm().item<double>() == doctest::Approx(want.norms[i]).epsilon(1e-5));
      }
      at::Tensor x;
      for (const auto& layer : model.decoder.layers)
        x = layer->forward(model.of(layer->parameters()), batch, x, nullptr);
      const auto logits = model.decoder.last_logits(model.of(model.decoder.loss->parameters()), x);
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(logits[0][static_cast<std::int64_t>(i)].item<double>() == doctest::Approx(want.logits[i]).epsilon(1e-5));
    }
  }

  TEST_CASE("decode_block: token by token and in pieces gives the result of the whole row") {
    for (const bool is_parallel : {true, false}) {
      at::manual_seed(9);
      check_decoding(Model(small_neox(is_parallel)), random_batch(1, 10, 50));
    }
  }

  TEST_CASE("config.json: our own and transformers' come back; what is not built is refused") {
    const auto config = small_neox(false);
    const auto json = hf_config(config);
    CHECK(json.at("architectures")[0] == "GPTNeoXForCausalLM");
    CHECK(model_config_to_json(model_config_from_hf(json, "exported")) == model_config_to_json(config));
    auto relu = json;
    relu["hidden_act"] = "relu";
    CHECK_THROWS_WITH_AS(model_config_from_hf(relu, "x"), doctest::Contains("hidden_act"), FormatError);
  }
}
