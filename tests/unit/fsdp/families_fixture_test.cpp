// Against transformers' models of each family: tests/fixtures/families (the README there says how made).
#include "tests/unit/fsdp/family_files.hpp"

#include "lib/base/error.hpp"
#include "lib/config/rope.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr const char* kFamilies[] = {"mistral_window", "mistral_full", "qwen2_tied",   "qwen2_untied", "qwen2_window",
                                     "qwen3",          "gemma",        "gemma2",       "gemma3",       "gemma3_scaled",
                                     "gpt2",           "phi3",         "phi3_partial", "olmo2"};
constexpr const char* kFamilyCases[] = {"a", "b", "c"};

bool has_case(const std::string& model, const char* which) {
  return read_json(family_folder(model) / "inputs.json").contains(which);
}

/// The weights have the shapes that the model asks for.
bool same_table(const ModelConfig& config, const std::vector<at::Tensor>& weights) {
  const auto table = parameter_table(config);
  if (table.size() != weights.size()) return false;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (weights[i].sizes() != at::IntArrayRef(table[i].shape)) return false;
  }
  return true;
}

/// Tokens chosen one after the other with the cache of keys and values, the prompt first in one piece.
std::vector<std::int64_t> greedy(const Setup& setup, const std::vector<std::int64_t>& prompt, std::size_t count) {
  auto forward = setup;
  forward.steps = 0;
  std::vector<std::int64_t> chosen;
  train(forward, [&](RigRank& rank) {
    const auto& decoder = rank.decoder();
    std::vector<LayerCache> caches(decoder.blocks.size());
    auto next = prompt;
    std::int64_t position = 0;
    // Once more with the same caches, as a text does that goes on beyond the model's last position.
    for (bool again = false; chosen.size() < 2 * count;) {
      if (chosen.size() == count && !again) {
        again = true;
        next = prompt;
        position = 0;
      }
      const auto n = static_cast<std::int64_t>(next.size());
      MicroBatch batch{at::tensor(next, at::kLong).to(at::kInt), {}, 1, n, {}, position};
      at::Tensor x, logits;
      rank.engine().with_layer_parameters(
          0, [&](LayerParams params) { x = decoder.layers[0]->forward(params, batch, {}, nullptr); });
      for (std::size_t b = 0; b < caches.size(); ++b) {
        rank.engine().with_layer_parameters(b + 1, [&](LayerParams params) {
          x = decoder.decode_block(static_cast<int>(b), params, x, caches[b], position);
        });
      }
      rank.engine().with_layer_parameters(decoder.layers.size(),
                                          [&](LayerParams params) { logits = decoder.last_logits(params, x); });
      position += n;
      next = {logits.argmax(-1).item<std::int64_t>()};
      chosen.push_back(next[0]);
    }
    // What lies behind a window was given up.
    for (std::size_t b = 0; b < caches.size(); ++b) {
      if (setup.model.traits.slides(static_cast<std::int64_t>(b))) CHECK(caches[b].first_position > 0);
    }
  });
  CHECK(std::equal(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(count),
                   chosen.begin() + static_cast<std::ptrdiff_t>(count), chosen.end()));
  chosen.resize(count);
  return chosen;
}

}  // namespace

TEST_SUITE("fsdp/families against transformers") {
  TEST_CASE("logits within 3e-5") {
    for (const std::string model : kFamilies) {
      const SafetensorsReader stored(family_folder(model) / "logits_rows.safetensors");
      for (const char* which : kFamilyCases) {
        if (!has_case(model, which)) continue;
        const auto setup = steps_on(model, which);
        const auto ids = setup.rows(0).ids;
        const auto logits = all_logits(setup).view({ids.size(0), ids.size(1), -1});
        const auto expected = read_json(family_folder(model) / "expected.json").at("cases").at(which).at("f32");
        Worst worst;
        int compared = 0;
        for (const auto& [key, value] : expected.items()) {
          int row = 0, position = 0;
          if (std::sscanf(key.c_str(), "logits_%d_pos%d_first16", &row, &position) != 2) continue;
          const auto want = at::tensor(value.get<std::vector<double>>(), at::kDouble);
          worst((logits[row][position].narrow(0, 0, 16).to(at::kDouble) - want).abs().max().item<double>());
          ++compared;
        }
        CAPTURE(model);
        CHECK(compared >= 2);
        CHECK(worst.value < 3e-5);
        MESSAGE(model, " ", std::string(which), ": logits differ by at most ", worst.value);
      }
    }
  }

  TEST_CASE("loss within 5e-6 and gradients within 1e-5 on 1 to 4 ranks, for every strategy, with recomputation") {
    for (const std::string model : kFamilies) {
      for (const char* which : kFamilyCases) {
        if (!has_case(model, which)) continue;
        const auto json = read_json(family_folder(model) / "expected.json");
        const auto want = json.at("cases").at(which).at("f32");
        for (const int ranks : {1, 2, 3, 4}) {
          auto setup = steps_on(model, which);
          setup.ranks = ranks;
          setup.policy.sharding = kShardings[static_cast<std::size_t>(ranks) % 3];
          setup.policy.checkpoint_every = ranks == 2 ? 1 : 0;
          const auto got = train(setup);
          Worst norms, first, projected;
          const auto table = parameter_table(setup.model);
          for (std::size_t i = 0; i < table.size(); ++i) {
            const auto& name = table[i].name;
            const auto grad = as_there(setup.model, table[i], got.gradients[i]).to(at::kDouble);
            const double norm = want.at("grad_norm").at(name).get<double>();
            norms(relative(grad.norm().item<double>(), norm));
            if (!want.contains("grad_first4")) continue;  // case c has norms alone
            const auto first4 = want.at("grad_first4").at(name).get<std::vector<double>>();
            for (std::size_t k = 0; k < first4.size(); ++k)
              first(std::abs(grad.view({-1})[static_cast<std::int64_t>(k)].item<double>() - first4[k]) / norm);
            // Finds permutations, which norms do not.
            const auto direction =
                prng_tensor("direction." + name, json.at("seed").get<std::uint64_t>(), grad.sizes().vec(), 1, 0)
                    .to(at::kDouble);
            projected(std::abs((grad * direction).sum().item<double>() - want.at("grad_dot").at(name).get<double>()) /
                      norm / std::sqrt(static_cast<double>(grad.numel())));
          }
          CAPTURE(model);
          CAPTURE(which);
          CAPTURE(ranks);
          CHECK(std::abs(got.losses[0] - want.at("loss").get<double>()) < 5e-6);
          CHECK(relative(got.norms[0], want.at("total_grad_norm").get<double>()) < 1e-5);
          CHECK(norms.value < 1e-5);
          CHECK(first.value < 1e-5);
          CHECK(projected.value < 1e-5);
        }
      }
    }
  }

  TEST_CASE("five steps of AdamW: losses within 1e-5 at first and 1e-4 at last") {
    for (const std::string model : kFamilies) {
      const auto want = read_json(family_folder(model) / "expected.json").at("training").at("f32");
      const auto losses = want.at("loss").get<std::vector<double>>();
      for (const int ranks : {1, 2}) {
        auto setup = steps_on(model, "b", static_cast<int>(losses.size()));
        setup.ranks = ranks;
        setup.lr = 1e-3;
        setup.clip = 1.0;
        const auto got = train(setup);
        CAPTURE(model);
        Worst worst;
        for (std::size_t i = 0; i < losses.size(); ++i) worst(std::abs(got.losses[i] - losses[i]));
        CHECK(std::abs(got.losses[0] - losses[0]) < 1e-5);
        CHECK(worst.value < 1e-4);
        MESSAGE(model, ", ", ranks, " ranks: losses of the steps differ by at most ", worst.value);
      }
    }
  }

  // 8 bits round differently where operations are fused; transformers' own bf16 is as far from its float32.
  TEST_CASE("bf16: loss within 1e-2 and gradient norms within 4 % of transformers' float32") {
    for (const std::string model : kFamilies) {
      const auto want = read_json(family_folder(model) / "expected.json").at("cases").at("b").at("f32");
      auto setup = steps_on(model, "b");
      setup.ranks = 2;
      setup.policy.precision.param_dtype = at::kBFloat16;
      setup.policy.precision.reduce_dtype = at::kBFloat16;
      const auto got = train(setup);
      CAPTURE(model);
      CHECK(std::abs(got.losses[0] - want.at("loss").get<double>()) < 1e-2);
      CHECK(relative(got.norms[0], want.at("total_grad_norm").get<double>()) < 0.04);
    }
  }

  TEST_CASE("greedy text is transformers', prompt and all beyond the windows") {
    for (const std::string model : kFamilies) {
      const auto want = read_json(family_folder(model) / "expected.json").at("greedy");
      const auto tokens = want.at("tokens").get<std::vector<std::int64_t>>();
      CAPTURE(model);
      CHECK(greedy(start_of(model), want.at("prompt").get<std::vector<std::int64_t>>(), tokens.size()) == tokens);
    }
  }

  // transformers passes over what it does not know. Here a key either does what it does there, or is refused by name.
  TEST_CASE("one key of config.json changed: the loss that transformers has, or an error that names the key") {
    const auto all = read_json(std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / "config_keys.json").at("models");
    int computed = 0, refused = 0;
    for (const auto& [model, tried] : all.items()) {
      const auto base = read_json(family_folder(model) / "config.json");
      for (const auto& change : tried.at("keys")) {
        const auto key = change.at("key").get<std::string>(), effect = change.at("effect").get<std::string>();
        // The weights have a head of their own: what becomes of that is the loader's matter.
        if (key == "tie_word_embeddings" && effect == "same") continue;
        // Null is as good as absent here; where a family has a width of its own, it is refused.
        if (key == "head_dim" && change.at("value").is_null() && effect == "error") continue;
        auto json = base;
        json[key] = change.at("value");
        if (change.at("value") == "(absent)") json.erase(key);
        CAPTURE(model);
        CAPTURE(change.dump());
        auto setup = steps_on(model, "b");
        try {
          setup.model = model_config_from_json(json, "changed");
          setup.model.dropout = 0;
          if (setup.model.architecture == Architecture::llama) rope_frequencies(setup.model);
        } catch (const Error& error) {
          CHECK(std::string(error.what()).find(key == "rope_scaling" ? "rope_scaling" : key) != std::string::npos);
          ++refused;
          continue;
        }
        const bool fits = same_table(setup.model, setup.weights);
        CHECK(fits == (effect == "same" || effect == "changes"));
        if (!fits) continue;
        CHECK(std::abs(train(setup).losses[0] - change.at("loss").get<double>()) < 1e-5);
        ++computed;
      }
    }
    CHECK(computed > 100);
    MESSAGE(computed, " losses computed, ", refused, " refused");
  }

  TEST_CASE("config.json of transformers 5, and our own, say the same model") {
    for (const std::string model : kFamilies) {
      CAPTURE(model);
      const auto config = read_model_config(family_folder(model) / "config.json");
      const auto five = read_model_config(family_folder(model) / "config_v5.json");
      CHECK(model_config_to_json(five) == model_config_to_json(config));
      const auto ours = model_config_to_json(config);
      CHECK(model_config_to_json(model_config_from_json(ours, "ours")) == ours);
      if (config.architecture == Architecture::llama)
        CHECK(model_config_to_json(model_config_from_hf(hf_config(config), "saved")) == ours);
    }
  }
}
