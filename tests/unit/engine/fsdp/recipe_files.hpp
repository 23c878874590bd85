#pragma once
// Models and rows of tests/fixtures/rope and tests/fixtures/falcon (README there), as setups of the engine tests.
#include "tests/unit/engine/fsdp/fixture_files.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>

#include "lib/models/config/rope.hpp"
#include "tests/support/packed_rows.hpp"

namespace fsdp::test {

/// A model of one of these folders, with what transformers computes with it.
class Recipe {
 public:
  Recipe(const char* kind, std::string name)
      : name_(std::move(name)), folder_(std::filesystem::path(FSDP_FIXTURE_DIR) / kind / name_) {
    at::set_num_threads(1);
    expected_ = read_json(folder_ / "expected.json");
    inputs_ = read_json(folder_ / "inputs.json");
  }

  const std::filesystem::path& folder() const { return folder_; }
  const nlohmann::json& expected() const { return expected_; }
  const nlohmann::json& inputs() const { return inputs_; }

  /// The model with the weights that gen/ of the fixtures made. \param config  with as many weights
  Setup start(const ModelConfig& config) const {
    Setup setup;
    setup.model = config;
    const auto seed = expected_.at("seed").get<std::uint64_t>();
    for (const auto& spec : parameter_table(config)) {
      const auto& amplitude = expected_.at("amplitudes").at(spec.name);
      setup.weights.push_back(prng_tensor(name_ + "." + spec.name, seed, spec.shape, amplitude[0].get<double>(),
                                          amplitude[1].get<double>()));
    }
    setup.clip = 1e9;  // no clipping
    setup.lr = 0;
    return setup;
  }
  Setup start() const { return start(read_model_config(folder_)); }

  /// `steps` steps on the rows of `inputs`, as they were trained there where there is more than one.
  Setup on(const nlohmann::json& inputs, int steps = 1) const {
    auto setup = start();
    const auto rows = rows_of(inputs);
    setup.rows = [rows](int) { return rows; };
    setup.steps = steps;
    if (steps > 1) {
      setup.lr = 1e-3;
      setup.clip = 1;
    }
    return setup;
  }

  static StepRows rows_of(const nlohmann::json& inputs) {
    const auto ids = int_tensor(inputs.at("input_ids")), labels = int_tensor(inputs.at("labels"));
    // The last position has no target.
    return {
        ids, at::cat({labels.narrow(1, 1, labels.size(1) - 1), at::full({labels.size(0), 1}, -100, at::kInt)}, 1), {}};
  }

  /// Compares gradients with norms and projections (`want`: a case of expected.json), in shares of the total norm.
  void check_gradients(const Setup& setup, const Outcome& got, const nlohmann::json& want) const {
    const auto total = want.at("total_grad_norm").get<double>();
    CHECK(std::abs(got.losses[0] - want.at("loss").get<double>()) < 3e-6);
    CHECK(relative(got.norms[0], total) < 3e-5);
    const auto table = parameter_table(setup.model);
    Worst norms, projected;
    for (std::size_t i = 0; i < table.size(); ++i) {
      const auto grad = got.gradients[i].to(at::kDouble);
      const auto direction =
          prng_tensor("direction." + table[i].name, expected_.at("seed").get<std::uint64_t>(), table[i].shape, 1, 0);
      norms(std::abs(grad.norm().item<double>() - want.at("grad_norm").at(table[i].name).get<double>()) / total);
      projected(std::abs((grad * direction.to(at::kDouble)).sum().item<double>() -
                         want.at("grad_dot").at(table[i].name).get<double>()) /
                total);
    }
    CHECK(norms.value < 3e-5);
    CHECK(projected.value < 3e-5);
  }

  /// Compares losses and gradient norms of five steps with `want`, on every third of 1 to 4 ranks.
  void check_training(const nlohmann::json& inputs, const nlohmann::json& want, int number) const {
    const auto losses = want.at("loss").get<std::vector<double>>(),
               norms = want.at("grad_norm").get<std::vector<double>>();
    REQUIRE(losses.size() == norms.size() + 1);
    for (const int ranks : {1, 2, 3, 4}) {
      if (!tries(number++, 3)) continue;
      auto setup = on(inputs, static_cast<int>(losses.size()));
      setup.ranks = ranks;
      setup.optimizer.weight_decay = 0.01;
      const auto got = train(setup);
      CHECK(largest_difference(losses, got.losses) < 1e-5);
      // After four updates: rounding differs by processor, by 2.2e-5 on one with AVX2 alone.
      for (std::size_t i = 0; i < norms.size(); ++i) CHECK(relative(got.norms[i], norms[i]) < 4e-5);
    }
  }

  /// Compares the logits of documents that share the first of `rows` with those of rows of their own.
  /// \param lengths  tokens of the documents; what is left of the row is padding
  void check_packed(const nlohmann::json& rows, const std::vector<std::int64_t>& lengths) const {
    const auto row = rows_of(rows).ids.narrow(0, 0, 1).contiguous();
    const auto logits = [&](const at::Tensor& ids, const std::shared_ptr<const Packing>& packing) {
      auto setup = start();
      setup.rows = [ids](int) { return StepRows{ids, at::zeros_like(ids), {}}; };
      return all_logits(setup, 0, packing);
    };
    const auto together = logits(row, packed({lengths}, row.size(1)));
    std::int64_t first = 0;
    for (const auto length : lengths) {
      const auto alone = logits(row.narrow(1, first, length).contiguous(), nullptr);
      CHECK((together.narrow(0, first, length) - alone).abs().max().item<double>() < 1e-5);
      first += length;
    }
  }

  /// Compares the tokens that follow the prompt of expected.json, chosen greedily with the key-value cache.
  void check_greedy() const {
    auto setup = start();
    setup.steps = 0;
    const auto& want = expected_.at("greedy");
    auto ids = want.at("prompt").get<std::vector<std::int64_t>>();
    const auto prompt = ids.size();
    train(setup, [&](RigRank& rank) {
      const auto& decoder = rank.decoder();
      std::vector<LayerCache> caches(decoder.blocks.size());
      std::int64_t cached = 0;
      while (ids.size() < prompt + want.at("tokens").size()) {
        const auto length = static_cast<std::int64_t>(ids.size());
        if (!same_rope(setup.model, cached, length)) cached = 0;
        const std::vector<std::int64_t> next(ids.begin() + cached, ids.end());
        MicroBatch batch{at::tensor(next, at::kLong).to(at::kInt), {}, 1, length - cached, {}, cached};
        auto& engine = rank.engine();
        auto x = decoder.layers[0]->forward(engine.gathered(0).params(), batch, {}, nullptr);
        for (std::size_t b = 0; b < caches.size(); ++b)
          x = decoder.decode_block(static_cast<int>(b), engine.gathered(b + 1).params(), x, caches[b], cached);
        const auto logits = decoder.last_logits(engine.gathered(decoder.layers.size()).params(), x);
        cached = length;
        ids.push_back(logits.argmax(-1).item<std::int64_t>());
      }
    });
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt));
    CHECK(ids == want.at("tokens").get<std::vector<std::int64_t>>());
  }

 private:
  std::string name_;
  std::filesystem::path folder_;
  nlohmann::json expected_, inputs_;
};

/// Returns the mean loss of `rows` by their logits [tokens, vocabulary].
inline double loss_of(const at::Tensor& logits, const StepRows& rows) {
  const auto targets = rows.targets.view({-1}).to(at::kLong);
  const auto counts = targets.ge(0);
  const auto chosen =
      at::log_softmax(logits.to(at::kDouble), 1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -(chosen * counts).sum().item<double>() / static_cast<double>(counts.sum().item<std::int64_t>());
}

}  // namespace fsdp::test
