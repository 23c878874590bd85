// Micro-batches that are captured once and replayed (CUDA graphs, emulated_recorder.hpp) against the same steps
// without graphs: the same bits, whatever changes from step to step.
#include "tests/unit/compute/cuda/recorded_steps.hpp"
#include "tests/support/objectives.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "lib/base/types/error.hpp"

using namespace fsdp;
using namespace fsdp::test;

TEST_SUITE("cuda/recorded steps") {
  TEST_CASE("recorded work keeps its scalar arguments and reads the tensors' values at each run") {
    auto x = at::ones({4}), factor = at::ones({1});
    at::Tensor sum;
    float number = 2;
    const auto work = EmulatedRecorder().record([&] {
      x.mul_(number).mul_(factor);
      sum = x + 1;
    });
    CHECK(same_bits(x, at::ones({4})));  // recording executes nothing
    number = 5;
    factor.fill_(3);
    work->run();
    CHECK(same_bits(x, at::full({4}, 6.0f)));
    CHECK(same_bits(sum, at::full({4}, 7.0f)));
    x.fill_(1);
    work->run();
    CHECK(same_bits(sum, at::full({4}, 7.0f)));
    CHECK_THROWS_AS(EmulatedRecorder().record([&] { static_cast<void>(x.sum().item<float>()); }), std::runtime_error);
  }

  TEST_CASE("reads of memory that the body had released, and uses of freed memory, are detected") {
    const auto x = at::ones({4});
    const auto copied_after = [&](bool holds, at::ScalarType type) {
      auto out = at::zeros({4}, type);
      const auto work = EmulatedRecorder().record([&] {
        auto twice = (x * 2).to(type);
        const auto* at_address = twice.data_ptr();
        if (!holds) twice.reset();
        emulated::launch({}, {}, emulated::Order::forward, std::memcpy, out.data_ptr(), at_address, out.nbytes());
      });
      work->run();
      return out;
    };
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong}) {
      CAPTURE(type);
      CHECK(same_bits(copied_after(true, type), at::full({4}, 2, type)));
      const auto found = copied_after(false, type);
      if (at::isFloatingType(type)) CHECK(found.isnan().all().item<bool>());
      if (!at::isFloatingType(type)) CHECK(found.abs().min().item<double>() > 2e9);
    }

    at::Tensor left, sum;
    const auto first = EmulatedRecorder().record([&] { left = x * 2; });
    const auto second = EmulatedRecorder().record([&] { sum = left + x; });
    const auto run_both = [&] {
      first->run();
      second->run();
      return sum.clone();
    };
    CHECK(same_bits(run_both(), at::full({4}, 3.0f)));
    left.reset();  // the next recording may reuse the memory
    CHECK(run_both().isnan().all().item<bool>());

    auto before = at::ones({4});
    const auto reads_it = EmulatedRecorder().record([&] { sum = before + x; });
    reads_it->run();
    CHECK(same_bits(sum, at::full({4}, 2.0f)));
    before.reset();
    CHECK_THROWS_AS(reads_it->run(), std::logic_error);
  }

  TEST_CASE("losses, norms and weights of replayed steps are those of eager steps, bit for bit") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    // All steps but the first and the short one.
    check(job, 1, 4);
    job.model.dropout = 0.2;
    check(job, 1, 4);
    job.sharding.checkpoint_every = 1;
    check(job, 1, 4);
    job.sharding.precision = at::kBFloat16;
    check(job, 1, 4);
    job.model = small_llama();
    check(job, 1, 4);
    job.sharding.freeze.freeze = {"*.k_proj.weight", "model.embed_tokens.weight"};
    check(job, 1, 4);
  }

  TEST_CASE("replayed steps with gradient accumulation give the same bits") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.accumulation_steps = 4;
    for (const auto sharding : {Sharding::full_shard, Sharding::no_shard}) {
      job.sharding.sharding = sharding;
      // First, middle and last micro-batch; the last one of the short step is not captured.
      check(job, 3, 19);
      job.model.dropout = 0.1;
    }
    job.sharding.precision = at::kBFloat16;
    check(job, 3, 19);
  }

  TEST_CASE("replayed steps read the weights of their own targets") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.objective = std::make_shared<WeighedById>();
    check(job, 1, 4);
  }

  TEST_CASE("replayed steps with adapters and frozen matrices, also in NF4, give the same bits") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.model.num_layers = 1;
    job.lr = 3e-2;
    job.sharding.lora = {4, 8, 0.1, {"all"}, false, /*dora=*/false};
    check(job, 1, 4);
    job.sharding.lora.dora = true;
    job.accumulation_steps = 3;
    check(job, 3, 14);
    job.sharding.precision = at::kBFloat16;
    job.sharding.quantize = {true, /*double_quant=*/true};
    check(job, 3, 14);
    job.model = small_llama();
    job.model.num_layers = 1;
    job.sharding.lora.dora = false;
    job.sharding.quantize.double_quant = false;
    check(job, 3, 14);
    job.accumulation_steps = 1;
    job.sharding.precision = at::kFloat;
    job.sharding.checkpoint_every = 1;
    check(job, 1, 4);
  }

  TEST_CASE("on a device that cannot capture, the run states the reason and continues without graphs") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.model.num_layers = 1;
    for (const int accumulation : {1, 3}) {
      job.accumulation_steps = accumulation;
      const auto want = train(job, CudaGraphs::off);
      for (const int fails : {0, 7, 30}) {
        if (fails == 7 && accumulation == 1) continue;
        CAPTURE(fails);
        const auto got = train(job, CudaGraphs::on, std::make_shared<const EmulatedRecorder>(fails));
        CHECK(got.counts.problem == "this device records nothing");
        CHECK(got.counts.refused == accumulation);
        CHECK(got.counts.replayed == 0);
        check_same(got, want);
      }
    }
  }

  TEST_CASE("if one micro-batch cannot be captured the others still are, and at most four failures are tried") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.model.num_layers = 1;
    job.model.dropout = 0.1;
    job.accumulation_steps = 3;
    const auto want = train(job, CudaGraphs::off);
    // The captures of the first, middle and last micro-batch; last ones run without graphs once more.
    for (int which = 0; which < 3; ++which) {
      CAPTURE(which);
      const auto recorder = std::make_shared<const EmulatedRecorder>(30, which, which + 1);
      const auto got = train(job, CudaGraphs::on, recorder);
      CHECK(got.counts.problem == "this device records nothing");
      CHECK(got.counts.refused == 1);
      CHECK(got.counts.recorded == 2);
      CHECK(got.counts.replayed == (which == 2 ? 10 : 9));
      CHECK(recorder->asked() == 3);
      check_same(got, want);
    }

    const auto recorder = std::make_shared<const EmulatedRecorder>(0, 1);
    job.device = recording_device(recorder);
    job.sharding.cuda_graphs = CudaGraphs::on;
    job.sharding.host_staged = true;
    job.accumulation_steps = 1;
    job.micro_batch_size = 7;
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      for (int round = 0; round < 3; ++round) {
        for (int samples = 7; samples > 0; --samples) rank.trainer->step(samples, [] { return false; });
      }
      CHECK(recorder->asked() == 5);
      const auto counts = rank.runtime.engine().recording_counts();
      CHECK(counts.refused == 4);
      CHECK(counts.recorded == 1);
      CHECK(counts.replayed == 2);  // replays of the first recording, until the end
    });
  }

  TEST_CASE("capture is refused if parameters are sharded over ranks, and on a device without captures") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.sharding.cuda_graphs = CudaGraphs::on;
    job.device = recording_device();
    const auto make = [&](int ranks) {
      std::string problem;
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        try {
          const SmallJobRank rank(world, job);
        } catch (const RequestError& error) {
          if (world.rank() == 0) problem = error.what();
        }
      });
      return problem;
    };
    CHECK(make(2).find("steps as CUDA graphs: parameters and gradients of 2 ranks") == 0);
    job.device = {};
    CHECK(make(1).find("steps as CUDA graphs: it needs a GPU") == 0);
  }

  TEST_CASE("replicas capture all micro-batches except the last, after which gradients are summed") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.accumulation_steps = 2;
    job.sharding.sharding = Sharding::no_shard;
    job.sharding.host_staged = true;
    std::vector<Outcome> both;
    for (const auto graphs : {CudaGraphs::off, CudaGraphs::on}) {
      job.sharding.cuda_graphs = graphs;
      job.device = recording_device();
      Outcome outcome;
      run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        for (int i = 0; i < 3; ++i) {
          const auto report = rank.step();
          if (world.rank() == 0) outcome.reports.push_back(report);
        }
        if (world.rank() == 0) outcome.counts = rank.runtime.engine().recording_counts();
        collect_state(rank, outcome.state);
      });
      both.push_back(std::move(outcome));
    }
    CHECK(both[1].counts.recorded == 1);
    CHECK(both[1].counts.replayed == 2);
    check_same(both[1], both[0]);
  }

  TEST_CASE("by default, micro-batches that are small for their model are captured on a single device") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = recording_device();
    job.sharding.host_staged = true;
    const auto tokens = [&](int ranks) {
      std::int64_t limit = -1;
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        if (world.rank() == 0) limit = rank.runtime.policy().graph_max_tokens;
      });
      return limit;
    };
    const std::int64_t block = 4 * 16 * 16 + 4 * 16 + 4 * 16 + 2 * 16 * 28 + 28 + 16;  // products, biases, norms
    CHECK(tokens(1) == (std::int64_t{1} << 33) / block);
    job.sharding.lora = {4, 8, 0, {"c_attn"}, false, false};
    job.sharding.quantize.nf4 = true;  // two codes per byte, and scales
    CHECK(tokens(1) == (std::int64_t{1} << 33) / (block + 4 * (16 + 48)));
    job.sharding.lora = {};
    job.sharding.quantize = {};
    job.sharding.precision = at::kBFloat16;
    CHECK(tokens(1) == (std::int64_t{1} << 36) / block);
    job.sharding.sharding = Sharding::no_shard;
    CHECK(tokens(2) == 0);
    job.sharding.sharding = Sharding::full_shard;
    CHECK(tokens(2) == 0);
    job.sharding.cpu_offload = true;
    CHECK(tokens(1) == 0);
  }
}
