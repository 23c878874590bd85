// The head on tokens with targets only, compared with the head on all tokens.
#include "tests/unit/models/layers/decoder_rig.hpp"

#include <string>
#include <vector>

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::int64_t kIds = 61, kTexts = 3, kTextLength = 10;

/// The sum of the squares of the sequences' losses.
class Squares final : public JointLoss {
 public:
  std::vector<std::string> sums() const override { return {"entropy"}; }
  const char* entropy_sum() const override { return "entropy"; }
  at::Tensor join(const MicroBatch&, const at::Tensor& nats_S, StepSums& sums) const override {
    sums.add_loss(nats_S.square().sum(), static_cast<double>(nats_S.numel()));
    return nats_S.mul(2);
  }
};

struct HeadCase {
  const char* name;
  ModelConfig config;
  DecoderOptions options;
};

std::vector<HeadCase> head_cases() {
  ModelConfig mingpt;
  mingpt.num_layers = 1;
  mingpt.num_heads = 2;
  mingpt.embed_size = 24;
  mingpt.ffn_hidden_size = 40;
  mingpt.vocab_size = kIds;
  mingpt.block_size = kTextLength;
  auto llama = mingpt;
  llama.architecture = Architecture::llama;
  auto capped = llama;
  capped.traits.logit_softcap = 2;
  auto reward = llama, classifier = llama;
  reward.labels = {"reward"};
  classifier.labels = {"bad", "fair", "good"};
  DecoderOptions adapted, grouped;
  adapted.lora.rank = 4;
  adapted.lora.dropout = 0.5;
  adapted.lora.targets = {"lm_head"};
  adapted.lora.token_rows = {{"lm_head", {3, 17}}};
  grouped.groups = {"even", "odd"};
  return {{"minGPT", mingpt, {}},          {"Llama", llama, {}},       {"a soft cap", capped, {}},
          {"an adapter", llama, adapted},  {"groups", llama, grouped}, {"a reward", reward, {}},
          {"a classifier", classifier, {}}};
}

/// Targets at the ends of rows: one where the model has scores, else several.
MicroBatch head_batch(const HeadCase& of) {
  auto batch = random_batch(kTexts, kTextLength, kIds);
  const std::int64_t last = of.config.has_scores() ? 1 : 4;
  batch.targets_N = batch.targets_N.remainder(of.config.outputs());
  if (of.config.outputs() == 1) batch.targets_N.zero_();
  batch.targets_N.view({kTexts, kTextLength}).narrow(1, 0, kTextLength - last).fill_(-1);
  if (!of.options.groups.empty()) batch.groups_N = batch.ids_N.remainder(2);
  return batch;
}

/// Tokens with targets and, at the beginning, one without.
MicroBatch with_head_tokens(MicroBatch batch) {
  auto chosen = batch.targets_N.ge(0);
  chosen.narrow(0, 0, 1).fill_(true);
  batch.head_tokens_M = chosen.nonzero().view({-1});
  return batch;
}

void check_same(const Model& model, const MicroBatch& batch) {
  const auto fewer = with_head_tokens(batch);
  REQUIRE(fewer.head_tokens_M.numel() < kTexts * kTextLength / 2);
  std::vector<GradSlot> all, chosen;
  const auto want = model.gradients(batch, 0.5, all), got = model.gradients(fewer, 0.5, chosen);
  const auto forward = model.loss(fewer);
  for (const auto* sums : {&got, &forward}) {
    CHECK(sums->nats == doctest::Approx(want.nats).epsilon(1e-6));
    CHECK(sums->weight == want.weight);
    REQUIRE(sums->named.size() == want.named.size());
    for (std::size_t i = 0; i < want.named.size(); ++i)
      CHECK(sums->named[i].value == doctest::Approx(want.named[i].value).epsilon(1e-6));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO(model.decoder.parameters[i].name);
    CHECK(all[i].grad.abs().max().item<float>() > 0);
    CHECK(relative_error(chosen[i].grad, all[i].grad) < 1e-5);  // sums of float32 in another order
  }
}

}  // namespace

TEST_SUITE("model/head") {
  TEST_CASE("logits of tokens with targets alone: losses, sums and all gradients are those of all tokens") {
    for (const auto& one : head_cases()) {
      INFO(std::string(one.name));
      at::manual_seed(21);
      const Model model(one.config, host_ops(), one.options);
      auto batch = head_batch(one);
      if (one.config.outputs() > 1) check_same(model, batch);
      const Squares squares;
      if (one.config.outputs() > 1 && one.config.has_scores()) continue;
      batch.joint = &squares;
      check_same(model, batch);
      batch.weights_N = batch.ids_N.remainder(3).add(1).to(at::kFloat);
      check_same(model, batch);
    }
  }

  TEST_CASE("the test detects a target that the head does not see") {
    at::manual_seed(22);
    const auto one = head_cases()[1];
    const Model model(one.config);
    const auto batch = head_batch(one);
    auto fewer = with_head_tokens(batch);
    fewer.head_tokens_M = fewer.head_tokens_M.narrow(0, 0, fewer.head_tokens_M.numel() - 1);
    CHECK(model.loss(fewer).weight == model.loss(batch).weight - 1);
  }
}
