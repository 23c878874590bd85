// Rotary scaling against transformers: tests/fixtures/rope (its README says how the files were made).
#include "tests/unit/engine/fsdp/recipe_files.hpp"

#include "lib/base/types/error.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr const char* kRopes[] = {"llama_default",
                                  "llama_dynamic",
                                  "llama_linear",
                                  "llama_llama3",
                                  "llama_yarn",
                                  "llama_yarn_attention_factor",
                                  "llama_yarn_mscale",
                                  "llama_yarn_mscale_alone",
                                  "llama_yarn_untruncated",
                                  "mistral_yarn_no_original",
                                  "phi3_longrope",
                                  "phi3_longrope_attention_factor",
                                  "phi3_longrope_factor",
                                  "phi3_longrope_partial",
                                  "phi3_su",
                                  "qwen2_yarn",
                                  "qwen3_yarn"};
/// short and edge: up to the trained length; long: beyond it.
constexpr const char* kBatches[] = {"short", "edge", "long"};
constexpr std::int64_t kFar = 300;  ///< first position of the batch `far`

/// Largest difference from the rows of logits that the fixture keeps as BATCH.row0 and BATCH.row1_last.
double logits_error(const Recipe& model, const at::Tensor& logits, const nlohmann::json& inputs, const char* batch) {
  const SafetensorsReader stored(model.folder() / "logits.safetensors");
  const auto row0 = read_tensor(stored, std::string(batch) + ".row0");
  const auto last = read_tensor(stored, std::string(batch) + ".row1_last");
  const auto length = static_cast<std::int64_t>(inputs.at("input_ids")[0].size());
  const auto rows = logits.view({-1, length, logits.size(1)});
  Worst worst;
  for (std::int64_t i = 0; i < row0.size(0); ++i) worst((rows[0][2 + 4 * i] - row0[i]).abs().max().item<double>());
  const auto mask = inputs.at("attention_mask")[1].get<std::vector<std::int64_t>>();
  const auto real = std::count(mask.begin(), mask.end(), 1);
  worst((rows[1][real - 1] - last.view({-1})).abs().max().item<double>());
  return worst.value;
}

double worst_relative(const std::vector<float>& got, const at::Tensor& want) {
  REQUIRE(static_cast<std::int64_t>(got.size()) == want.numel());
  Worst worst;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst(relative(got[i], want[static_cast<std::int64_t>(i)].item<double>()));
  return worst.value;
}

}  // namespace

TEST_SUITE("fsdp/rope against transformers") {
  TEST_CASE("frequencies and attention factors, from config.json of transformers 4 and 5 and our own") {
    for (const std::string name : kRopes) {
      CAPTURE(name);
      const Recipe model("rope", name);
      const SafetensorsReader stored(model.folder() / "logits.safetensors");
      const auto four = read_model_config(model.folder() / "config.json");
      std::vector<ModelConfig> all{four, read_model_config(model.folder() / "config_v5.json"),
                                   model_config_from_json(model_config_to_json(four), "ours"),
                                   model_config_from_hf(hf_config(four), "exported")};
      for (const auto& config : all) {
        for (const char* batch : {"edge", "long"}) {
          const auto length = static_cast<std::int64_t>(model.inputs().at(batch).at("input_ids")[0].size());
          const auto want = read_tensor(stored, std::string("inv_freq_") + batch);
          CHECK(worst_relative(rope_frequencies(config, false, length), want) < 1e-6);
        }
        CHECK(relative(rope_attention_factor(config), model.expected().at("attention_factor").get<double>()) < 1e-7);
        CHECK(longest_row(config) >= 46);
        CHECK(longest_row(config) == longest_row(four));
      }
    }
  }

  TEST_CASE("logits and losses up to the trained length, beyond and far from the start, on 1 to 4 ranks") {
    int number = 0;
    for (const std::string name : kRopes) {
      CAPTURE(name);
      const Recipe model("rope", name);
      for (const std::string batch : kBatches) {
        CAPTURE(batch);
        const auto& inputs = model.inputs().at(batch);
        auto setup = model.on(inputs);
        for (setup.ranks = 1; setup.ranks <= 4; ++setup.ranks) {
          if (setup.ranks > 1 && !tries(number++, 4)) continue;
          const auto logits = all_logits(setup);
          CHECK(logits_error(model, logits, inputs, batch.c_str()) < 5e-5);
          const auto want = model.expected().at("f32").at(batch).at("loss").get<double>();
          CHECK(std::abs(loss_of(logits, setup.rows(0)) - want) < 3e-6);
        }
      }
      const auto& inputs = model.inputs().at("short");
      const auto setup = model.on(inputs);
      const auto logits = all_logits(setup, kFar);
      CHECK(logits_error(model, logits, inputs, "far") < 2e-4);
      CHECK(std::abs(loss_of(logits, setup.rows(0)) - model.expected().at("f32").at("far").at("loss").get<double>()) <
            2e-5);
    }
  }

  TEST_CASE("gradients of rows beyond the trained length, and five steps of short and of long rows") {
    int turn = 0;
    for (const std::string name : kRopes) {
      CAPTURE(name);
      const Recipe model("rope", name);
      auto setup = model.on(model.inputs().at("long"));
      setup.policy.checkpoint_every = turn % 2;
      model.check_gradients(setup, train(setup), model.expected().at("f32").at("long"));
      for (const char* batch : {"short", "long"})
        model.check_training(model.inputs().at(batch), model.expected().at("training").at(batch), turn++);
    }
  }

  TEST_CASE("greedy text across the trained length, with the cache") {
    for (const std::string name : kRopes) {
      CAPTURE(name);
      Recipe("rope", name).check_greedy();
    }
  }

  TEST_CASE("packed documents have the frequencies of the longest one") {
    for (const std::string name : {"llama_dynamic", "phi3_longrope"}) {
      CAPTURE(name);
      const Recipe model("rope", name);
      // Two documents of 20 tokens in a row of 46: nothing is longer than the trained length.
      model.check_packed(model.inputs().at("long"), {20, 20});
    }
  }

  // transformers ignores unknown keys. Here a key either has the same effect or is refused by name.
  TEST_CASE("with one key of config.json changed, the loss equals transformers', or an error names the key") {
    const auto all = read_json(std::filesystem::path(FSDP_FIXTURE_DIR) / "rope" / "config_keys.json").at("keys");
    int computed = 0, refused = 0;
    for (const auto& change : all) {
      const auto name = change.at("case").get<std::string>(), key = change.at("key").get<std::string>(),
                 effect = change.at("effect").get<std::string>();
      CAPTURE(change.dump());
      const Recipe model("rope", name);
      auto json = read_json(model.folder() / "config.json");
      json[key] = change.at("value");
      if (change.at("value") == "(absent)") json.erase(key);
      // Version 4 reads this one, and 5 reads what is exported from it.
      const bool older_alone =
          effect == "error" && key == "rope_scaling" && change.at("value").value("type", "") == "su";
      try {
        const auto config = model_config_from_json(json, "changed");
        rope_frequencies(config, false, 46);
        rope_attention_factor(config);
        if (older_alone) continue;
        CHECK(effect != "error");
        if (effect == "error") continue;
        auto setup = model.start(config);
        const auto rows = Recipe::rows_of(model.inputs().at("long"));
        setup.rows = [rows](int) { return rows; };
        CHECK(std::abs(loss_of(all_logits(setup), rows) - change.at("loss").get<double>()) < 1e-5);
        ++computed;
      } catch (const Error& error) {
        const std::string told = error.what();
        const bool named = told.find(key) != std::string::npos || told.find("rope_scaling") != std::string::npos;
        CHECK(named);
        ++refused;
      }
    }
    MESSAGE(computed, " losses computed, ", refused, " refused");
    CHECK(computed >= 19);
  }
}
