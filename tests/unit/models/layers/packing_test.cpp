// Documents that share rows, through whole models: compared with separate documents, and with typical mistakes.
#include <ATen/ops/cat.h>

#include "lib/compute/ops/device_ops.hpp"
#include "tests/support/packed_rows.hpp"
#include "tests/support/small_model.hpp"
#include "tests/unit/models/layers/decoder_rig.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::int64_t kVocab = 97, kLength = 24;
const std::vector<std::vector<PackedDocument>> kRows{{7, 11, 6}, {9, 1, 4}, {20}};
/// Documents that share some, nearly all, or all tokens of the one before.
const std::vector<std::vector<PackedDocument>> kSharing{{9, {4, 6}, 3, {7, 3}}, {18, {1, 18}}, {20}};

struct Family {
  const char* name;
  bool learns_positions;
  ModelConfig config;
};

std::vector<Family> families() {
  ModelConfig mingpt;
  mingpt.num_layers = 2;
  mingpt.num_heads = 2;
  mingpt.embed_size = 24;
  mingpt.ffn_hidden_size = 40;
  mingpt.vocab_size = kVocab;
  mingpt.block_size = kLength;
  auto llama = mingpt;
  llama.architecture = Architecture::llama;
  llama.num_heads = 4;
  llama.num_kv_heads = 2;
  auto sliding = llama;
  sliding.traits.window = 5;
  sliding.traits.sliding = {true, false};
  const auto falcons = small_falcons();
  return {{"minGPT", true, mingpt},
          {"Llama", false, llama},
          {"with a window", false, sliding},
          {"Falcon", false, falcons[1]},
          {"with ALiBi", false, falcons[4]}};
}

/// Targets of padding do not count.
MicroBatch packed_batch(const std::vector<std::vector<PackedDocument>>& rows = kRows) {
  auto batch = random_batch(static_cast<std::int64_t>(rows.size()), kLength, kVocab);
  batch.packing = packed_sharing(rows, kLength);
  auto counted = at::full_like(batch.targets_N, -1);
  for (const auto& [first, length, shared] : batch.packing->documents)
    counted.narrow(0, first, length).copy_(batch.targets_N.narrow(0, first, length));
  batch.targets_N = counted;
  return batch;
}

/// A document by itself, with the tokens that it shares, whose targets do not count.
MicroBatch document_of(const MicroBatch& batch, std::size_t i) {
  const auto& document = batch.packing->documents[i];
  MicroBatch one;
  one.rows = 1;
  one.length = document.shared + document.length;
  one.ids_N = batch.ids_N.narrow(0, document.first, document.length);
  one.targets_N = batch.targets_N.narrow(0, document.first, document.length);
  if (document.shared == 0) return one;
  const auto shared = batch.ids_N.narrow(0, batch.packing->documents[i - 1].first, document.shared);
  one.ids_N = at::cat({shared, one.ids_N});
  one.targets_N = at::cat({at::full_like(shared, -1), one.targets_N});
  return one;
}

/// The sum of the losses and gradients of the separate documents.
double apart(const Model& model, const MicroBatch& batch, std::vector<at::Tensor>& gradients) {
  double loss = 0;
  for (std::size_t d = 0; d < batch.packing->documents.size(); ++d) {
    std::vector<GradSlot> slots;
    loss += model.gradients(document_of(batch, d), 1.0, slots).nats;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (gradients.size() <= i) gradients.push_back(at::zeros_like(slots[i].grad));
      gradients[i].add_(slots[i].grad);
    }
  }
  return loss;
}

/// Largest relative difference over the gradients of all parameters.
double gradients_differ(const std::vector<GradSlot>& slots, const std::vector<at::Tensor>& want) {
  double worst = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) worst = std::max(worst, relative_error(slots[i].grad, want[i]));
  return worst;
}

}  // namespace

TEST_SUITE("model/packing") {
  TEST_CASE("loss and all gradients equal those of the separate documents") {
    const DeviceOps plain(at::kCPU);
    for (const auto& family : families()) {
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&plain)}) {
        INFO(std::string(family.name), ops == &plain ? " by plain operators" : "");
        at::manual_seed(11);
        const Model model(family.config, *ops);
        for (const auto* rows : {&kRows, &kSharing}) {
          INFO(std::string(rows == &kSharing ? "with shared tokens" : ""));
          const auto batch = packed_batch(*rows);
          std::vector<at::Tensor> want;
          const auto loss = apart(model, batch, want);
          std::vector<GradSlot> slots;
          const auto got = model.gradients(batch, 1.0, slots);
          CHECK(got.weight == (rows == &kRows ? 58 : 62));
          CHECK(got.nats == doctest::Approx(loss).epsilon(1e-6));
          CHECK(model.loss(batch).nats == doctest::Approx(loss).epsilon(1e-6));
          CHECK(gradients_differ(slots, want) < 1e-5);  // sums of about 60 float32 terms in another order
        }
      }
    }
  }

  TEST_CASE("the test detects attention across documents and positions that continue across documents") {
    for (const auto& family : families()) {
      INFO(std::string(family.name));
      at::manual_seed(12);
      const Model model(family.config);
      const auto batch = packed_batch();
      const auto loss = model.loss(batch).nats;
      auto leaks = batch;
      auto leaky = std::make_shared<Packing>(*batch.packing);
      leaky->documents = packed({{kLength}, {kLength}, {kLength}}, kLength)->documents;
      leaks.packing = leaky;
      CHECK(std::abs(model.loss(leaks).nats - loss) > 0.1);
      auto runs_on = batch;
      auto running = std::make_shared<Packing>(*batch.packing);
      running->positions_N = packed({{kLength}, {kLength}, {kLength}}, kLength)->positions_N;
      runs_on.packing = running;
      const auto moved = std::abs(model.loss(runs_on).nats - loss);
      // Rotary positions are relative, so only learned positions change the loss if positions do not restart.
      CHECK((family.learns_positions ? moved > 0.1 : moved < 1e-3));
    }
  }

  TEST_CASE("the test detects a shared token that is left out, and one too many") {
    for (const auto& family : families()) {
      INFO(std::string(family.name));
      at::manual_seed(14);
      const Model model(family.config);
      const auto batch = packed_batch(kSharing);
      const auto loss = model.loss(batch).nats;
      auto wrong = batch;
      auto rows = kSharing;
      for (const std::int64_t shared : {5, 7}) {
        rows[0][1].shared = shared;
        wrong.packing = packed_sharing(rows, kLength);
        CHECK(std::abs(model.loss(wrong).nats - loss) > 0.01);
      }
    }
  }

  TEST_CASE("padding affects nothing, whatever its ids") {
    for (const auto& family : families()) {
      INFO(std::string(family.name));
      at::manual_seed(13);
      const Model model(family.config);
      auto batch = packed_batch();
      std::vector<GradSlot> before, after;
      const auto loss = model.gradients(batch, 1.0, before).nats;
      auto ids = batch.ids_N.clone();
      const auto padding = batch.targets_N.lt(0);
      ids.masked_fill_(padding, 3);
      batch.ids_N = ids;
      CHECK(model.gradients(batch, 1.0, after).nats == loss);
      for (std::size_t i = 0; i < before.size(); ++i) CHECK(relative_error(after[i].grad, before[i].grad) < 1e-6);
    }
  }
}
