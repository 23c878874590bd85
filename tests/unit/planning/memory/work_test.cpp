// Compares the recorded work of a simulated step with the work that follows from the model's shapes.
#include <doctest/doctest.h>

#include "lib/planning/memory/prediction.hpp"

namespace fsdp::test {
namespace {

MemoryRequest job_to_count(bool on_gpu, int ranks = 1) {
  MemoryRequest request;
  request.config.num_layers = 3;
  request.config.num_heads = 4;
  request.config.embed_size = 128;
  request.config.ffn_hidden_size = 512;
  request.config.vocab_size = 8000;
  request.tokens_per_row = 128;
  request.options.batch_size = 40;  // needs more iterations of attention's loop than are simulated
  request.job = {ranks, ranks, 0};
  if (on_gpu) request.gpu = find_gpu("a100-80g");
  return request;
}

/// FLOPs of products with weights, and of attention.
struct Operations {
  double weights = 0, attention = 0, again = 0;
};

Operations operations_of(const WorkLog& log) {
  Operations sums;
  for (const auto& item : log.work()) {
    const bool is_product = item.kind == WorkItem::Kind::product;
    if (!is_product && item.kind != WorkItem::Kind::attention) continue;
    const double operations = item.times * item.operations();
    // On a host, attention's products are batches of heads.
    double& sum = item.again ? sums.again : (is_product && item.batch == 1 ? sums.weights : sums.attention);
    sum += operations;
  }
  return sums;
}

double bytes_sent(const WorkLog& log) {
  double bytes = 0;
  for (const auto& item : log.work()) {
    if (item.kind != WorkItem::Kind::start) continue;
    const auto& transfer = item.transfer;
    // Counted like the engine: for a reduction the bytes sent, for other transfers the bytes from other ranks.
    const bool is_sum = transfer.kind == TransferWork::Kind::all_reduce;
    bytes += is_sum ? transfer.bytes : transfer.bytes * (transfer.ranks - 1) / transfer.ranks;
  }
  return bytes;
}

}  // namespace

TEST_SUITE("memory/work") {
  TEST_CASE("products take 2 operations per weight and token forward, and 4 backward") {
    for (const bool on_gpu : {false, true}) {
      CAPTURE(on_gpu);
      const auto request = job_to_count(on_gpu);
      const double tokens = 40 * 128, width = 128, layers = 3;
      const double weights = layers * 12 * width * width + 8000 * width;

      const auto found = operations_of(predict_memory(request).work.log);

      // The head's columns are padded to a multiple of 64.
      CHECK(found.weights == doctest::Approx(6 * tokens * weights).epsilon(0.01));
      // Forward: 2 products per pair of tokens; backward: 4, with kernels 5. A host multiplies all pairs, a kernel half
      // of them.
      const double pairs = layers * tokens * (on_gpu ? 129.0 / 2 : 128.0);
      CHECK(found.attention == doctest::Approx(pairs * width * (on_gpu ? 4 + 10 : 4 + 8)).epsilon(0.01));
      CHECK(found.again == 0);
    }
  }

  TEST_CASE("recomputed work is marked as such") {
    auto request = job_to_count(false);
    const auto once = operations_of(predict_memory(request).work.log);
    request.options.sharding.checkpoint_every = 1;
    const auto twice = operations_of(predict_memory(request).work.log);
    CHECK(twice.weights == doctest::Approx(once.weights));
    const double blocks = 2 * (40 * 128) * (3 * 12 * 128 * 128.0);
    CHECK(twice.again > 0.9 * blocks);  // the backward pass does not need all intermediate results
    CHECK(twice.again < 1.1 * (blocks + once.attention / 3));
  }

  TEST_CASE("each micro-batch does the work of a batch") {
    auto request = job_to_count(false);
    const auto one = operations_of(predict_memory(request).work.log);
    request.options.gradient_accumulation_steps = 3;
    CHECK(operations_of(predict_memory(request).work.log).weights == doctest::Approx(3 * one.weights));
  }

  TEST_CASE("Falcon's GELU is a pass: two tensors forward, and again for the weights' gradient, three backward") {
    auto request = job_to_count(true);
    request.config.architecture = Architecture::falcon;
    request.config.block_size = 128;
    request.config.num_kv_heads = 2;
    request.config.tie_word_embeddings = true;
    request.config.traits.family = "falcon";
    request.config.traits.new_decoder = true;
    request.config.traits.parallel_norms = 2;
    const auto bytes_of_passes = [&](std::int64_t hidden) {
      request.config.ffn_hidden_size = hidden;
      double bytes = 0;
      const auto prediction = predict_memory(request);
      for (const auto& item : prediction.work.log.work())
        if (item.kind == WorkItem::Kind::pass) bytes += item.times * item.bytes;
      return bytes;
    };
    const double elements = 3 * (40 * 128) * 512.0;
    const double more = (bytes_of_passes(1024) - bytes_of_passes(512)) / (4 * elements);
    CHECK(more > 7);
    CHECK(more < 8);  // the other passes over what grows are those of the weights, which are 20 times fewer
  }

  TEST_CASE("recorded transfers match the engine's counts") {
    for (const auto sharding :
         {Sharding::full_shard, Sharding::grad_shard, Sharding::optimizer_shard, Sharding::hybrid_full_shard}) {
      CAPTURE(to_string(sharding));
      auto request = job_to_count(true, 8);
      request.job.ranks_per_node = 4;
      request.options.sharding.sharding = sharding;
      request.options.sharding.precision = at::kBFloat16;
      const auto prediction = predict_memory(request);
      const auto counted = prediction.comm.shard.bytes + prediction.comm.replicate.bytes;
      // The gradient norm and the loss are transferred, too.
      CHECK(bytes_sent(prediction.work.log) == doctest::Approx(static_cast<double>(counted)).epsilon(0.02));
    }
  }
}

}  // namespace fsdp::test
