// Compares each family with transformers' models: tests/fixtures/families (its README says how they were made).
#include "tests/unit/engine/fsdp/family_files.hpp"

#include <map>

#include "lib/base/types/error.hpp"
#include "lib/models/config/rope.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Checks that the weights have the shapes of the model's parameters.
bool same_table(const ModelConfig& config, const std::vector<at::Tensor>& weights) {
  const auto table = parameter_table(config);
  if (table.size() != weights.size()) return false;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (weights[i].sizes() != at::IntArrayRef(table[i].shape)) return false;
  }
  return true;
}

/// Expected gradients of one case, from transformers.
class Gradients {
 public:
  Gradients(const std::string& model, const char* which) : config_(start_of(model).model) {
    const auto json = read_json(family_folder(model) / "expected.json");
    const auto& want = json.at("cases").at(which).at("f32");
    loss_ = want.at("loss").get<double>();
    total_norm_ = want.at("total_grad_norm").get<double>();
    const bool norms_alone = !want.contains("grad_first4");  // case c
    for (const auto& spec : parameter_table(config_)) {
      auto& one = parameters_.emplace_back();
      one.spec = spec;
      one.norm = want.at("grad_norm").at(spec.name).get<double>();
      if (norms_alone) continue;
      one.first4 = want.at("grad_first4").at(spec.name).get<std::vector<double>>();
      one.projection = want.at("grad_dot").at(spec.name).get<double>();
      // The direction has the shape of transformers' parameter. A projection reveals permutations, which norms do not.
      const auto there = as_there(config_, spec, at::empty(spec.shape)).sizes().vec();
      one.direction =
          prng_tensor("direction." + spec.name, json.at("seed").get<std::uint64_t>(), there, 1, 0).to(at::kDouble);
    }
  }

  void check(const Outcome& got) const {
    Worst norms, first, projected;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& want = parameters_[i];
      const auto grad = as_there(config_, want.spec, got.gradients[i]).to(at::kDouble);
      norms(relative(grad.norm().item<double>(), want.norm));
      for (std::size_t k = 0; k < want.first4.size(); ++k) {
        const double element = grad.view({-1})[static_cast<std::int64_t>(k)].item<double>();
        first(std::abs(element - want.first4[k]) / want.norm);
      }
      if (!want.direction.defined()) continue;
      projected(std::abs((grad * want.direction).sum().item<double>() - want.projection) / want.norm /
                std::sqrt(static_cast<double>(grad.numel())));
    }
    CHECK(std::abs(got.losses[0] - loss_) < 5e-6);
    CHECK(relative(got.norms[0], total_norm_) < 1e-5);
    CHECK(norms.value < 1e-5);
    CHECK(first.value < 1e-5);
    CHECK(projected.value < 1e-5);
  }

 private:
  struct OfParameter {
    ParameterSpec spec;
    double norm = 0, projection = 0;
    std::vector<double> first4;
    at::Tensor direction;  ///< undefined if only norms are known
  };
  ModelConfig config_;
  double loss_ = 0, total_norm_ = 0;
  std::vector<OfParameter> parameters_;
};

/// Calls body(ranks, ranks per emulated node, strategy, recomputed blocks) for a ninth of the combinations, other ones
/// in each turn (all where FSDP_ALL is set). Hybrids use groups of one rank for two ranks and of two for four; with one
/// rank, and with three, which form one group, strategies do not differ.
template <typename Body>
void for_every_sharding(int turn, const Body& body) {
  int number = turn;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const auto sharding : kShardings) {
      if (ranks == 1 && sharding != Sharding::full_shard) continue;
      if (ranks == 3 && is_hybrid(sharding)) continue;
      for (const int checkpoint_every : {0, 1})
        if (tries(number++, 9)) body(ranks, is_hybrid(sharding) ? ranks / 2 : ranks, sharding, checkpoint_every);
    }
  }
}

/// Returns tokens chosen greedily with the key-value cache; the prompt is processed in one piece.
std::vector<std::int64_t> greedy(const Setup& setup, const std::vector<std::int64_t>& prompt, std::size_t count) {
  auto forward = setup;
  forward.steps = 0;
  std::vector<std::int64_t> chosen;
  train(forward, [&](RigRank& rank) {
    const auto& decoder = rank.decoder();
    std::vector<LayerCache> caches(decoder.blocks.size());
    auto next = prompt;
    std::int64_t position = 0;
    // Repeat with the same caches, like a text that continues beyond the model's last position.
    for (bool again = false; chosen.size() < 2 * count;) {
      if (chosen.size() == count && !again) {
        again = true;
        next = prompt;
        position = 0;
      }
      const auto n = static_cast<std::int64_t>(next.size());
      MicroBatch batch{at::tensor(next, at::kLong).to(at::kInt), {}, 1, n, {}, position};
      auto& engine = rank.engine();
      auto x = decoder.layers[0]->forward(engine.gathered(0).params(), batch, {}, nullptr);
      for (std::size_t b = 0; b < caches.size(); ++b)
        x = decoder.decode_block(static_cast<int>(b), engine.gathered(b + 1).params(), x, caches[b], position);
      const auto logits = decoder.last_logits(engine.gathered(decoder.layers.size()).params(), x);
      position += n;
      next = {logits.argmax(-1).item<std::int64_t>()};
      chosen.push_back(next[0]);
    }
    // Positions outside of the window were dropped.
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
  TEST_CASE("logits of whole rows of the vocabulary within 1e-5, on 1 to 4 ranks") {
    int number = 0;
    for (const std::string model : kFamilies) {
      const SafetensorsReader stored(family_folder(model) / "logits_rows.safetensors");
      std::size_t compared = 0;
      Worst worst;
      for (const char* which : kFamilyCases) {
        if (!has_case(model, which)) continue;
        auto setup = steps_on(model, which);
        const auto ids = setup.rows(0).ids;
        const auto expected = read_json(family_folder(model) / "expected.json").at("cases").at(which).at("f32");
        for (setup.ranks = 1; setup.ranks <= 4; ++setup.ranks) {
          if (setup.ranks > 1 && !tries(number++, 4)) continue;
          const auto logits = all_logits(setup).view({ids.size(0), ids.size(1), -1});
          const int kept = for_kept_logits(expected, [&](int row, int position, const std::string& name) {
            const auto want = read_tensor(stored, std::string(which) + "." + name);
            REQUIRE(logits[row][position].sizes() == want.sizes());
            worst((logits[row][position] - want).abs().max().item<double>());
          });
          if (setup.ranks == 1) compared += static_cast<std::size_t>(kept);
        }
      }
      CAPTURE(model);
      CHECK(compared == stored.tensors().size());
      CHECK(worst.value < 1e-5);
      MESSAGE(model, ": logits differ by at most ", worst.value);
    }
  }

  TEST_CASE(
      "loss within 5e-6 and gradients within 1e-5: every strategy on 1 to 4 ranks, with and without recomputation") {
    int turn = 0;
    for (const std::string model : kFamilies) {
      for (const char* which : kFamilyCases) {
        if (!has_case(model, which)) continue;
        const Gradients want(model, which);
        for_every_sharding(turn++, [&](int ranks, int ranks_per_node, Sharding sharding, int checkpoint_every) {
          auto setup = steps_on(model, which);
          setup.ranks = ranks;
          setup.ranks_per_node = ranks_per_node;
          setup.policy.sharding = sharding;
          setup.policy.checkpoint_every = checkpoint_every;
          CAPTURE(model);
          CAPTURE(std::string(which));
          CAPTURE(ranks);
          CAPTURE(checkpoint_every);
          INFO(std::string(to_string(sharding)));
          want.check(train(setup));
        });
      }
    }
  }

  TEST_CASE("five steps of AdamW on 1 to 4 ranks: losses and gradient norms within 1e-5") {
    int number = 0;
    for (const std::string model : kFamilies) {
      const auto want = read_json(family_folder(model) / "expected.json").at("training").at("f32");
      // Losses before each step and after the last one; norms before clipping.
      const auto losses = want.at("loss").get<std::vector<double>>(),
                 norms = want.at("grad_norm").get<std::vector<double>>();
      REQUIRE(losses.size() == 6);
      REQUIRE(norms.size() == 5);
      Worst loss, norm;
      for (const int ranks : {1, 2, 3, 4}) {
        if (!tries(number++, 3)) continue;
        auto setup = steps_on(model, "b", static_cast<int>(losses.size()));
        setup.ranks = ranks;
        setup.lr = 1e-3;
        setup.clip = 1.0;
        const auto got = train(setup);
        loss(largest_difference(losses, got.losses));
        for (std::size_t i = 0; i < norms.size(); ++i) norm(relative(got.norms[i], norms[i]));
      }
      CAPTURE(model);
      CHECK(loss.value < 1e-5);
      CHECK(norm.value < 1e-5);
      MESSAGE(model, ": losses of the steps differ by at most ", loss.value, ", norms by ", norm.value);
    }
  }

  TEST_CASE("greedy text equals transformers', with prompts and texts longer than the windows") {
    for (const std::string model : kFamilies) {
      const auto want = read_json(family_folder(model) / "expected.json").at("greedy");
      const auto tokens = want.at("tokens").get<std::vector<std::int64_t>>();
      CAPTURE(model);
      CHECK(greedy(start_of(model), want.at("prompt").get<std::vector<std::int64_t>>(), tokens.size()) == tokens);
    }
  }

  // transformers ignores unknown keys. Here a key either has the same effect or is refused by name.
  TEST_CASE("with one key of config.json changed, the loss equals transformers', or an error names the key") {
    const auto all = read_json(std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / "config_keys.json").at("models");
    int computed = 0, refused = 0;
    // Keys without effect in transformers, because the family does not know them, but with a meaning in other families:
    // the trainer refuses them. No other key without effect may be refused, nor these keys in more models.
    const std::map<std::string, int> meant_otherwise{{"mlp_bias", 8},
                                                     {"attention_bias", 3},
                                                     {"attention_dropout", 8},
                                                     {"embd_pdrop", 1},
                                                     {"resid_pdrop", 1},
                                                     {"partial_rotary_factor", 7},
                                                     {"use_bidirectional_attention", 7},
                                                     {"logits_scaling", 8},
                                                     {"query_pre_attn_scalar", 6},
                                                     {"attn_logit_softcapping", 6},
                                                     {"final_logit_softcapping", 6},
                                                     {"rope_scaling", 1},     // gemma3: with the old key `type`
                                                     {"rope_parameters", 1},  // gemma3: one for both kinds of layers
                                                     {"sliding_window", 1},   // olmo2
                                                     {"clip_qkv", 1},
                                                     {"use_mrope", 1}};
    std::map<std::string, int> refused_there_unread;
    for (const auto& [model, tried] : all.items()) {
      const auto base = read_json(family_folder(model) / "config.json");
      for (const auto& change : tried.at("keys")) {
        const auto key = change.at("key").get<std::string>(), effect = change.at("effect").get<std::string>();
        // The weights have a separate head; the loader decides about it.
        if (key == "tie_word_embeddings" && effect == "same") continue;
        // Null counts as absent, except that families with a head width of their own refuse it.
        if (key == "head_dim" && change.at("value").is_null() && effect == "error") continue;
        // transformers 4 computes with Phi-3's older name of longrope.
        if (key == "rope_scaling" && effect == "error" && change.at("value").value("type", "") == "su") continue;
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
          if (effect == "same") ++refused_there_unread[key];
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
    CHECK(refused_there_unread == meant_otherwise);
    CHECK(computed > 100);
    MESSAGE(computed, " losses computed, ", refused, " refused");
  }

  TEST_CASE("transformers 5's config.json and our own describe the same model") {
    for (const std::string model : kFamilies) {
      CAPTURE(model);
      const auto config = read_model_config(family_folder(model) / "config.json");
      auto five = read_model_config(family_folder(model) / "config_v5.json");
      // Version 5 writes null for ids that version 4 leaves out; they do not belong to the model.
      five.bos_token_id = config.bos_token_id;
      five.eos_token_id = config.eos_token_id;
      CHECK(model_config_to_json(five) == model_config_to_json(config));
      const auto ours = model_config_to_json(config);
      CHECK(model_config_to_json(model_config_from_json(ours, "ours")) == ours);
      if (config.architecture == Architecture::llama)
        CHECK(model_config_to_json(model_config_from_hf(hf_config(config), "saved")) == ours);
    }
  }
}
