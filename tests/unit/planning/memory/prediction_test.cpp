#include "lib/planning/memory/prediction.hpp"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/planning/memory/measurement.hpp"
#include "lib/ranks/fake_group.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::MemoryRequest;

namespace {

MemoryRequest small_job() {
  MemoryRequest request;
  request.config.num_layers = 3;
  request.config.num_heads = 4;
  request.config.embed_size = 128;
  request.config.ffn_hidden_size = 512;
  request.config.vocab_size = 8000;
  request.tokens_per_row = 128;
  request.options.batch_size = 16;
  request.threads = at::get_num_threads();  // oneDNN packs operands per thread
  return request;
}

double deviation(const MemoryRequest& request) {
  const auto world = fsdp::make_single_group();
  const auto measured = fsdp::measure_memory(*world, request, {});
  const auto predicted = fsdp::predict_memory(request);
  return static_cast<double>(predicted.profile.peak_bytes) / static_cast<double>(measured.peak_bytes) - 1;
}

}  // namespace

TEST_SUITE("memory/prediction") {
  TEST_CASE("the predicted peak is within 1 % of the measured one") {
    fsdp::install_host_allocator();
    for (const auto precision : {at::kFloat, at::kBFloat16}) {
      for (const int checkpoint_every : {0, 1}) {
        auto request = small_job();
        request.options.sharding.precision = precision;
        request.options.sharding.checkpoint_every = checkpoint_every;
        request.options.gradient_accumulation_steps = 1 + checkpoint_every;
        CAPTURE(precision);
        CAPTURE(checkpoint_every);
        CHECK(deviation(request) == doctest::Approx(0).scale(1).epsilon(0.01));
      }
    }
  }

  TEST_CASE("so is that of Falcon: parallel halves with grouped heads, and ALiBi") {
    fsdp::install_host_allocator();
    for (const bool alibi : {false, true}) {
      auto request = small_job();
      auto& config = request.config;
      config.architecture = fsdp::Architecture::falcon;
      config.block_size = 128;
      config.num_kv_heads = alibi ? 4 : 2;
      config.tie_word_embeddings = true;
      config.attention_bias = config.mlp_bias = config.traits.alibi = alibi;
      config.traits.family = "falcon";
      config.traits.new_decoder = !alibi;
      config.traits.parallel_norms = alibi ? 0 : 2;
      request.options.sharding.precision = alibi ? at::kFloat : at::kBFloat16;
      CAPTURE(alibi);
      CHECK(deviation(request) == doctest::Approx(0).scale(1).epsilon(0.01));
    }
  }

  TEST_CASE("whole parameters of optimizer-shard in memory of their own are predicted to the byte") {
    fsdp::install_host_allocator();
    for (const int ranks : {1, 2, 3, 4}) {
      for (const auto precision : {at::kFloat, at::kBFloat16}) {
        CAPTURE(ranks);
        CAPTURE(precision);
        auto request = small_job();
        request.job = {ranks, ranks, ranks - 1};
        request.options.sharding.sharding = fsdp::Sharding::optimizer_shard;
        request.options.sharding.precision = precision;
        request.options.sharding.host_staged = true;  // collectives instead of shared memory
        const auto lone = fsdp::make_lone_rank(
            request.job, [](fsdp::ProcessGroup& group) { fsdp::make_mesh(group, fsdp::Sharding::optimizer_shard, 0); });
        const auto measured = fsdp::measure_memory(*lone, request, {});
        const auto predicted = fsdp::predict_memory(request);
        CHECK(predicted.profile.peak_bytes == measured.peak_bytes);
        // Parameters are whole; what the optimizer updates and keeps is this rank's part.
        auto one = request;
        one.options.sharding.sharding = fsdp::Sharding::grad_shard;
        CHECK(predicted.profile.steady_bytes >= fsdp::predict_memory(one).profile.steady_bytes);
      }
    }
  }

  TEST_CASE("parameters on a disk beside the optimizer are predicted to the byte") {
    fsdp::install_host_allocator();
    const fsdp::test::TempDir scratch;
    for (const int ranks : {1, 3}) {
      for (const auto precision : {at::kFloat, at::kBFloat16}) {
        CAPTURE(ranks);
        CAPTURE(precision);
        auto request = small_job();
        request.job = {ranks, ranks, 0};
        auto& sharding = request.options.sharding;
        sharding.precision = precision;
        sharding.host_staged = true;
        sharding.offload_optimizer = {fsdp::OffloadConfig::Place::nvme, scratch.path().string(), 1 << 20};
        const auto kept = fsdp::predict_memory(request);
        sharding.offload_parameters = true;
        const auto lone = fsdp::make_lone_rank(
            request.job, [](fsdp::ProcessGroup& group) { fsdp::make_mesh(group, fsdp::Sharding::full_shard, 0); });
        const auto predicted = fsdp::predict_memory(request);
        CHECK(predicted.profile.peak_bytes == fsdp::measure_memory(*lone, request, {}).peak_bytes);
        CHECK(predicted.host.disk_bytes > kept.host.disk_bytes);
        CHECK(predicted.host.disk_save_bytes == kept.host.disk_save_bytes);
      }
    }
  }

  TEST_CASE("on a GPU, memory grows with the batch and shrinks with ranks and recomputation") {
    auto request = small_job();
    request.gpu = fsdp::find_gpu("v100-16g");
    const auto base = fsdp::predict_memory(request).total_bytes();

    auto larger = request;
    larger.options.batch_size = 64;
    CHECK(fsdp::predict_memory(larger).total_bytes() > base);
    auto recomputed = larger;
    recomputed.options.sharding.checkpoint_every = 1;
    CHECK(fsdp::predict_memory(recomputed).profile.peak_bytes < fsdp::predict_memory(larger).profile.peak_bytes);
    auto shared = request;
    shared.job = {8, 8, 0};
    CHECK(fsdp::predict_memory(shared).profile.steady_bytes < fsdp::predict_memory(request).profile.steady_bytes);
  }

  TEST_CASE("offloaded states count as host memory") {
    auto request = small_job();
    request.gpu = fsdp::find_gpu("v100-16g");
    const auto kept = fsdp::predict_memory(request);
    request.options.sharding.cpu_offload = true;
    const auto offloaded = fsdp::predict_memory(request);

    // Master weights, gradients and both moments take 16 bytes per parameter.
    const auto parameters = fsdp::num_parameters(fsdp::parameter_table(request.config));
    CHECK(kept.host.states_bytes == 0);
    CHECK(offloaded.host.states_bytes >= 16 * parameters);
    CHECK(offloaded.profile.steady_bytes <= kept.profile.steady_bytes - 8 * parameters);
  }

  TEST_CASE("a GPU that is too small causes allocation retries") {
    auto request = small_job();
    request.gpu = fsdp::find_gpu("700MiB");
    request.options.batch_size = 256;

    const auto prediction = fsdp::predict_memory(request);

    CHECK_FALSE(prediction.fits());
    CHECK(prediction.allocator.num_ooms > 0);
  }

  TEST_CASE("the collectives of a step match the sharding strategy") {
    auto request = small_job();
    request.job = {4, 2, 0};
    const auto full = fsdp::predict_memory(request).comm;
    CHECK(full.shard.all_gathers == 2 * 4 - 1);
    CHECK(full.shard.reduce_scatters == 4);
    request.options.sharding.sharding = fsdp::Sharding::hybrid_full_shard;
    CHECK(fsdp::predict_memory(request).comm.replicate.all_reduces == 4);
  }

  TEST_CASE("only a few of many micro-batches are replayed, but all are counted") {
    auto request = small_job();
    request.job = {4, 2, 0};
    const auto with = [&](int micro_batches) {
      request.options.gradient_accumulation_steps = micro_batches;
      return fsdp::predict_memory(request);
    };
    const auto one = with(1), two = with(2), three = with(3), sixteen = with(16), many = with(1000);
    CHECK(many.rows_per_step == 1000 * one.rows_per_step);
    CHECK(many.accumulation_steps == 1000);
    CHECK(many.tokens_per_step == doctest::Approx(1000 * one.tokens_per_step));
    CHECK(many.flops == doctest::Approx(1000 * one.flops));
    // A micro-batch's tokens are kept until the end of the step.
    const auto tokens = three.profile.peak_bytes - two.profile.peak_bytes;
    CHECK(tokens > 0);
    CHECK(sixteen.profile.peak_bytes == two.profile.peak_bytes + 14 * tokens);
    CHECK(many.profile.peak_bytes == two.profile.peak_bytes + 998 * tokens);
    const auto per_micro_batch = two.comm.shard.all_gathers - one.comm.shard.all_gathers;
    CHECK(per_micro_batch > 0);
    CHECK(many.comm.shard.all_gathers == one.comm.shard.all_gathers + 999 * per_micro_batch);
    CHECK(many.comm.shard.bytes == one.comm.shard.bytes + 999 * (two.comm.shard.bytes - one.comm.shard.bytes));
    CHECK(many.work.log.work().size() == sixteen.work.log.work().size());
    CHECK(many.work.more == 984);
    // With the batches that --total-batch-size makes.
    request.options.total_batch_size = many.rows_per_step;
    CHECK(with(0).comm.shard.bytes == many.comm.shard.bytes);
  }
}
