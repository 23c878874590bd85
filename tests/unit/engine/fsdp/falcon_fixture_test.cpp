// Falcon against transformers: tests/fixtures/falcon (its README says how the files were made).
#include "tests/unit/engine/fsdp/recipe_files.hpp"

#include "lib/base/types/error.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr const char* kFalcons[] = {"falcon_7b",         "falcon_40b", "falcon_11b",
                                    "falcon_mha_rotary", "falcon_rw",  "falcon_rw_pow2"};

/// The loss of falcon_7b with alibi: true by transformers' sdpa; config_keys.json has that of eager.
constexpr double kSharedAlibi = 5.120760440826416;

nlohmann::json falcon_keys() {
  return read_json(std::filesystem::path(FSDP_FIXTURE_DIR) / "falcon" / "config_keys.json").at("keys");
}

/// True where the weights of a case are those of `config`.
bool fits(const Recipe& model, const ModelConfig& config) {
  const auto& shapes = model.expected().at("shapes");
  const auto table = parameter_table(config);
  return table.size() == shapes.size() && std::all_of(table.begin(), table.end(), [&](const ParameterSpec& spec) {
           return shapes.contains(spec.name) && shapes.at(spec.name).get<std::vector<std::int64_t>>() == spec.shape;
         });
}

}  // namespace

TEST_SUITE("fsdp/Falcon against transformers") {
  TEST_CASE("parameters in transformers' order; config.json of transformers 4 and 5 and our own describe one model") {
    for (const std::string name : kFalcons) {
      CAPTURE(name);
      const Recipe model("falcon", name);
      const auto config = read_model_config(model.folder() / "config.json");
      CHECK(fits(model, config));
      CHECK(num_parameters(parameter_table(config)) == model.expected().at("parameters").get<std::int64_t>());
      const auto ours = model_config_to_json(config);
      CHECK(model_config_to_json(read_model_config(model.folder() / "config_v5.json")) == ours);
      CHECK(model_config_to_json(model_config_from_json(ours, "ours")) == ours);
      const auto exported = hf_config(config);
      CHECK(exported.at("architectures")[0] == "FalconForCausalLM");
      CHECK(model_config_to_json(model_config_from_hf(exported, "exported")) == ours);
      const auto five = read_json(model.folder() / "config_v5.json");
      for (const auto* key : {"alibi", "bias", "new_decoder_architecture", "parallel_attn", "ffn_hidden_size"})
        CHECK(exported.at(key) == five.at(key));
    }
  }

  TEST_CASE("logits within 5e-5 and losses within 3e-6, on 1 to 4 ranks") {
    int number = 0;
    for (const std::string name : kFalcons) {
      CAPTURE(name);
      const Recipe model("falcon", name);
      auto setup = model.on(model.inputs());
      const auto want = read_tensor(SafetensorsReader(model.folder() / "logits.safetensors"), "logits").flatten(0, 1);
      const auto real = int_tensor(model.inputs().at("attention_mask")).view({-1, 1});
      for (setup.ranks = 1; setup.ranks <= 4; ++setup.ranks) {
        if (setup.ranks > 1 && !tries(number++, 3)) continue;
        const auto logits = all_logits(setup);
        CHECK(((logits - want) * real).abs().max().item<double>() < 5e-5);
        CHECK(std::abs(loss_of(logits, setup.rows(0)) - model.expected().at("f32").at("loss").get<double>()) < 3e-6);
      }
    }
  }

  TEST_CASE("gradients with every strategy on 1 to 4 ranks, with and without recomputation; five steps") {
    int number = 0;
    for (const std::string name : kFalcons) {
      CAPTURE(name);
      const Recipe model("falcon", name);
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const auto sharding : kShardings) {
          if (!tries(number++, 7)) continue;
          auto setup = model.on(model.inputs());
          setup.ranks = ranks;
          setup.ranks_per_node = is_hybrid(sharding) && ranks % 2 == 0 ? ranks / 2 : ranks;
          setup.policy.sharding = sharding;
          setup.policy.checkpoint_every = number % 2;
          CAPTURE(ranks);
          INFO(std::string(to_string(sharding)));
          model.check_gradients(setup, train(setup), model.expected().at("f32"));
        }
      }
      model.check_training(model.inputs(), model.expected().at("training"), number);
    }
  }

  TEST_CASE("greedy text with the cache") {
    for (const std::string name : kFalcons) {
      CAPTURE(name);
      Recipe("falcon", name).check_greedy();
    }
  }

  TEST_CASE("packed documents give the logits of rows of their own") {
    for (const std::string name : {"falcon_40b", "falcon_rw"}) {
      CAPTURE(name);
      const Recipe model("falcon", name);
      model.check_packed(model.inputs(), {9, 12});
    }
  }

  TEST_CASE("adapters on all matrices train alike on 1 and 3 ranks, and leave the model alone") {
    for (const std::string name : {"falcon_7b", "falcon_rw"}) {
      CAPTURE(name);
      const Recipe model("falcon", name);
      auto setup = model.on(model.inputs(), 4);
      setup.lora = {4, 8, 0, {"all"}, false, false};
      setup.lr = 1e-2;
      const auto base = setup.weights.size();
      at::manual_seed(3);
      for (const auto& spec : adapter_table(setup.model, setup.lora))
        setup.weights.push_back(spec.init == Init::zeros ? at::zeros(spec.shape) : at::randn(spec.shape) * 0.1);
      CHECK(setup.weights.size() == base + 2 * 4 * 2);  // A and B of four matrices in two blocks
      const auto one = train(setup);
      setup.ranks = 3;
      const auto three = train(setup);
      CHECK(std::abs(one.losses[0] - model.expected().at("f32").at("loss").get<double>()) < 3e-6);
      CHECK(one.losses[3] < one.losses[0] - 0.05);
      CHECK(largest_difference(one.losses, three.losses) < 1e-5);
      for (std::size_t i = 0; i < base; ++i) CHECK(same_bits(one.parameters[i], setup.weights[i]));
    }
  }

  // transformers ignores unknown keys. Here a key either has the same effect or is refused by name.
  TEST_CASE("with one key of config.json changed, the loss equals transformers', or an error names the key") {
    int computed = 0, refused = 0;
    for (const auto& change : falcon_keys()) {
      const auto key = change.at("key").get<std::string>(), effect = change.at("effect").get<std::string>();
      // Its weights have a head that differs from the embedding; the loader decides about it.
      if (key == "tie_word_embeddings" && effect == "same") continue;
      const bool eager = key == "alibi" && change.at("value") == true;  // which adds the bias twice
      CAPTURE(change.dump());
      const Recipe model("falcon", change.at("case").get<std::string>());
      auto json = read_json(model.folder() / "config.json");
      json[key] = change.at("value");
      if (change.at("value") == "(absent)") json.erase(key);
      try {
        const auto config = model_config_from_json(json, "changed");
        const bool same_weights = fits(model, config);
        // Without biases transformers leaves those of the file out.
        const bool leaves_out = change.contains("unexpected") && effect == "changes";
        CHECK((same_weights || leaves_out) == (effect == "same" || effect == "changes"));
        if (!same_weights) continue;
        auto setup = model.start(config);
        const auto rows = Recipe::rows_of(model.inputs());
        setup.rows = [rows](int) { return rows; };
        const auto want = eager ? kSharedAlibi : change.at("loss").get<double>();
        CHECK(std::abs(loss_of(all_logits(setup), rows) - want) < 1e-5);
        ++computed;
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find(key) != std::string::npos);
        ++refused;
      }
    }
    MESSAGE(computed, " losses computed, ", refused, " refused");
    CHECK(computed >= 13);
  }
}
