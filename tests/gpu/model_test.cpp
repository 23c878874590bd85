// Compares whole decoders on the device with the CPU: PyTorch's or our CUDA operators there against the CPU kernels.
#include "tests/support/torch_doctest.hpp"

#include "tests/gpu/gpu_support.hpp"
#include "tests/support/attention_truth.hpp"
#include "tests/support/packed_rows.hpp"
#include "tests/support/small_model.hpp"
#include "tests/unit/models/layers/decoder_rig.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

const at::Device kCuda(at::kCUDA, 0);

ModelConfig small_mingpt() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_heads = 2;
  config.embed_size = 64;
  config.ffn_hidden_size = 96;
  config.vocab_size = 97;
  config.block_size = 10;
  return config;
}

ModelConfig small_llama(std::int64_t kv_heads, bool biases) {
  ModelConfig config = small_mingpt();
  config.architecture = Architecture::llama;
  config.num_kv_heads = kv_heads;
  config.attention_bias = config.mlp_bias = biases;
  return config;
}

/// Returns a model whose windows are shorter than rows and documents, with grouped key heads: flash attention in bf16,
/// blocked attention in float32; with a cap always blocked attention.
ModelConfig sliding_llama(double softcap) {
  auto config = small_llama(1, false);
  config.head_size = 32;
  config.traits.window = 4;
  config.traits.sliding = {true, softcap == 0};
  config.traits.attention_softcap = softcap;
  return config;
}

const Ops& device_ops() {
  static const auto ops = cuda_backend()->make_ops(0);
  return *ops;
}

Model moved(const Model& model, at::ScalarType dtype, const Ops& ops = device_ops()) {
  Model copy(model.decoder.config, ops);
  for (std::size_t i = 0; i < copy.parameters.size(); ++i)
    copy.parameters[i] = model.parameters[i].to(ops.device(), dtype);
  return copy;
}

MicroBatch moved(const MicroBatch& batch) {
  auto copy = batch;
  copy.ids_N = batch.ids_N.to(kCuda);
  copy.targets_N = batch.targets_N.to(kCuda);
  if (batch.packing == nullptr) return copy;
  auto packing = std::make_shared<Packing>(*batch.packing);
  packing->positions_N = packing->positions_N.to(kCuda);
  packing->starts = packing->starts.to(kCuda);
  copy.packing = std::move(packing);
  return copy;
}

/// Every token except padding is a target.
MicroBatch packed_batch() {
  auto batch = random_batch(3, 10, 97);
  batch.packing = packed({{4, 6}, {7}, {2, 3, 5}}, 10);
  batch.targets_N.narrow(0, 17, 3).fill_(-1);
  return batch;
}

}  // namespace

TEST_SUITE("gpu/model") {
  TEST_CASE("loss and gradients of minGPT, Llama and Falcon on the device equal the CPU's") {
    cuda_backend()->set_device(0);
    std::vector<ModelConfig> configs{small_mingpt(), small_llama(2, false), small_llama(1, true), sliding_llama(0),
                                     sliding_llama(2)};
    for (const auto& falcon : small_falcons()) configs.push_back(falcon);
    for (const auto& config : configs) {
      at::manual_seed(3);
      const Model model(config);
      // Packed documents: one flash kernel in bf16, document by document in float32.
      for (const auto& batch : {random_batch(3, 10, 97), packed_batch()}) {
        std::vector<GradSlot> want;
        const auto loss = model.gradients(batch, 1.0, want);
        std::vector<GradSlot> narrow;
        moved(model, at::kBFloat16, host_ops()).gradients(batch, 1.0, narrow);
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          const bool shared = batch.packing != nullptr;
          CAPTURE(shared);
          // float32: another order of sums. bf16: 8 bits, rounded at every operation, which moves gradients of q and k
          // of these small models by up to 10 %; so at most three times as far from float32 as the host's bf16 (or two
          // roundings), as in scripts/gpu-check.
          const double tolerance = dtype == at::kFloat ? 1e-4 : 5e-2;
          const auto allowed = [&](std::size_t i) {
            return dtype == at::kFloat ? tolerance : std::max(8e-3, 3 * relative_error(narrow[i].grad, want[i].grad));
          };
          std::vector<GradSlot> got;
          const auto there = moved(model, dtype).gradients(moved(batch), 1.0, got);
          CHECK(there.weight == loss.weight);
          CHECK(there.nats == doctest::Approx(loss.nats).epsilon(tolerance));
          for (std::size_t i = 0; i < want.size(); ++i) {
            INFO(model.decoder.parameters[i].name);
            CHECK(relative_error(got[i].grad.to(at::kCPU), want[i].grad) < allowed(i));
          }
        }
      }
    }
  }

  TEST_CASE("windows and caps on the device, in each attention kernel, equal the host's attention") {
    cuda_backend()->set_device(0);
    at::manual_seed(5);
    const auto packing = packed({{400, 1, 150}, {300, 280}}, 600);
    auto there = std::make_shared<Packing>(*packing);
    there->starts = packing->starts.to(kCuda);
    there->positions_N = packing->positions_N.to(kCuda);
    for (const std::int64_t kv_heads : {4, 2}) {
      for (const std::int64_t head_size : {64, 256, 20}) {
        for (const std::int64_t window : {0, 1, 100, 257}) {
          for (const double cap : {0.0, 5.0}) {
            for (const bool shares : {false, true}) {
              AttentionShape s{2, 600, 4, head_size, kv_heads};
              s.window = window;
              s.softcap = cap;
              if (shares) s.packing = packing.get();
              const auto qkv = at::randn({1200, s.packed_width()}), grad = at::randn({1200, 4 * head_size});
              const auto want = run_attention(host_ops(), qkv, grad, s);
              if (shares) s.packing = there.get();
              // Nothing reads padding. Flash attends to it as to one more document, and the host leaves zeros.
              const auto of_documents = [&](const at::Tensor& x) {
                auto here = x.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
                if (shares) {
                  here.narrow(0, 551, 49).zero_();
                  here.narrow(0, 1180, 20).zero_();
                }
                return here;
              };
              for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
                INFO("heads ", kv_heads, ", size ", head_size, ", window ", window, ", cap ", cap, ", shared ", shares);
                CAPTURE(dtype);
                const auto got = run_attention(device_ops(), qkv.to(kCuda, dtype), grad.to(kCuda, dtype), s);
                // float32: other orders of sums; 16 bits: rounded inputs, probabilities and results.
                const double bound = dtype == at::kFloat ? 2e-5 : dtype == at::kHalf ? 4e-3 : 3e-2;
                CHECK(relative_error(of_documents(got.out_ND), of_documents(want.out_ND)) < bound);
                CHECK(relative_error(of_documents(got.grad_qkv), of_documents(want.grad_qkv)) < bound);
              }
            }
          }
        }
      }
    }
  }

  TEST_CASE("decoding with a cache on the device: logits equal the CPU's") {
    cuda_backend()->set_device(0);
    for (const auto& config : {small_mingpt(), small_llama(1, false)}) {
      at::manual_seed(4);
      const Model model(config);
      const auto there = moved(model, at::kFloat);
      const auto batch = random_batch(1, 10, 97);
      const auto logits = [&](const Model& m, const MicroBatch& b) {
        std::vector<LayerCache> caches(2);
        at::Tensor x;
        for (std::int64_t done = 0; done < 10; done += 5) {
          const MicroBatch part{b.ids_N.narrow(0, done, 5), {}, 1, 5, {}, done};
          auto& embedding = *m.decoder.layers[0];
          x = embedding.forward(m.of(embedding.parameters()), part, {}, nullptr);
          for (int block = 0; block < 2; ++block) {
            const auto index = static_cast<std::size_t>(block);
            x = m.decoder.decode_block(block, m.of(m.decoder.layers[index + 1]->parameters()), x, caches[index], done);
          }
        }
        return m.decoder.last_logits(m.of(m.decoder.loss->parameters()), x).to(at::kCPU);
      };
      CHECK(relative_error(logits(there, moved(batch)), logits(model, batch)) < 1e-4);
    }
  }
}
