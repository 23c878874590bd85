// Runs the layers of a whole minGPT without an engine: gradients against finite differences, decoding, chunks of the
// head.
#include "tests/support/torch_doctest.hpp"

#include <torch/csrc/autograd/autograd.h>

#include "tests/unit/models/layers/decoder_rig.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

ModelConfig small(double dropout) {
  ModelConfig config;
  config.num_layers = 2;
  config.num_heads = 2;
  config.embed_size = 12;
  config.ffn_hidden_size = 20;
  config.vocab_size = 97;
  config.block_size = 10;
  config.dropout = dropout;
  return config;
}

}  // namespace

TEST_SUITE("model/mingpt") {
  TEST_CASE("backward: the derivative of the loss along a random direction, with and without dropout") {
    for (const double dropout : {0.0, 0.2}) {
      at::manual_seed(5);
      INFO("dropout ", dropout);
      Model model(small(dropout));
      check_derivatives(model, random_batch(3, 10, 97));
    }
  }

  TEST_CASE("backward: rows of the vocabulary's padding get no gradient") {
    Model model(small(0.0));
    std::vector<GradSlot> slots;
    model.gradients(random_batch(2, 7, 97), 1.0, slots);
    REQUIRE(slots[0].grad.size(0) == 128);
    CHECK(slots[0].grad.narrow(0, 97, 31).abs().max().item<float>() == 0.0f);
  }

  TEST_CASE("backward: a gradient scale of 0 gives gradients of 0") {
    Model model(small(0.0));
    std::vector<GradSlot> slots;
    model.gradients(random_batch(2, 7, 97), 0.0, slots);
    for (const auto& slot : slots) CHECK(slot.grad.abs().max().item<float>() == 0.0f);
  }

  TEST_CASE("dropout: off without sample keys, and a row's loss does not depend on its neighbours") {
    at::manual_seed(7);
    Model model(small(0.3)), plain(small(0.0));
    plain.parameters = model.parameters;
    auto batch = random_batch(2, 8, 97);
    const auto dropped = model.loss(batch).nats;
    double by_row = 0;
    for (std::int64_t row = 0; row < 2; ++row) {
      MicroBatch one{batch.ids_N.narrow(0, row * 8, 8),
                     batch.targets_N.narrow(0, row * 8, 8),
                     1,
                     8,
                     batch.sample_keys.narrow(0, row, 1),
                     0};
      by_row += model.loss(one).nats;
    }
    CHECK(by_row == doctest::Approx(dropped).epsilon(1e-6));
    batch.sample_keys.reset();
    std::vector<GradSlot> slots;
    CHECK(model.gradients(batch, 1.0, slots).nats == doctest::Approx(plain.loss(batch).nats).epsilon(1e-6));
    CHECK(dropped != doctest::Approx(plain.loss(batch).nats).epsilon(1e-4));
  }

  TEST_CASE("decode_block: token by token and in pieces gives the result of the whole row") {
    at::manual_seed(9);
    const auto config = small(0.0);
    check_decoding(Model(config), random_batch(1, 10, 97));
  }

  TEST_CASE("head: several chunks of a large vocabulary give the loss and gradients of a single chunk") {
    at::manual_seed(11);
    auto config = small(0.0);
    config.num_heads = 1;
    config.embed_size = 8;
    config.vocab_size = 50257;  // a chunk has 541 rows of float32 logits
    auto decoder = make_decoder(config, host_ops());
    auto weight = at::zeros({50304, 8});
    weight.narrow(0, 0, 50257).normal_();
    const std::vector<at::Tensor> params{at::randn({8}), at::randn({8}), weight};
    auto batch = random_batch(1, 700, 50257);
    const auto x = at::randn({700, 8});
    std::vector<GradSlot> slots;
    for (const auto& p : params) slots.push_back({at::empty_like(p), false});
    const std::vector<GradSlot*> pointers{&slots[0], &slots[1], &slots[2]};
    at::Tensor grad_x;
    StepSums loss, again;
    decoder.loss->forward_backward(params, pointers, {batch, 1.0 / 700, &loss}, x, &grad_x);
    decoder.loss->forward(params, {batch, 0.0, &again}, x);
    CHECK(again.nats == doctest::Approx(loss.nats).epsilon(1e-12));

    std::vector<at::Tensor> leaves{x.to(at::kDouble).requires_grad_(true)};
    for (const auto& p : params) leaves.push_back(p.to(at::kDouble).requires_grad_(true));
    const auto normed = at::layer_norm(leaves[0], {8}, leaves[1], leaves[2], config.layer_norm_eps);
    const auto logits = at::mm(normed, leaves[3].narrow(0, 0, 50257).t());
    const auto want = at::cross_entropy_loss(logits, batch.targets_N.to(at::kLong));
    const auto grads = torch::autograd::grad({want}, leaves);
    CHECK(loss.nats / 700 == doctest::Approx(want.item<double>()).epsilon(1e-6));
    // Compared with float64. A float32 sum over the vocabulary has an error of sqrt(50257) * 6e-8 = 1.3e-5 if the
    // library adds sequentially (1.3e-5 measured with MKL), and of 6e-7 if it adds partial sums (oneDNN).
    CHECK(relative_error(grad_x, grads[0]) < 3e-5);
    for (std::size_t i = 0; i < 3; ++i) CHECK(relative_error(slots[i].grad, grads[i + 1]) < 3e-5);
  }
}
