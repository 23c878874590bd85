// Whole training steps as on GPUs (the kernels' source on the CPU, decisions without the host, gate and up side by
// side), against the host's steps.
#include "tests/support/emulated_ops.hpp"
#include "tests/support/idle_run.hpp"
#include "tests/support/objectives.hpp"
#include "tests/support/small_job.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"
#include "tests/support/watched_loader.hpp"

#include <cmath>
#include <limits>

#include "lib/training/run/train_loop.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

DeviceChoice emulated_device() {
  DeviceChoice device;
  device.ops = std::make_shared<EmulatedOps>(emulated::Order::shuffled);
  return device;
}

/// Rows of all matrices divide by 2 and by 4, except those of keys, which do not divide by 4.
ModelConfig uneven_llama() {
  auto config = small_model();
  config.architecture = Architecture::llama;
  config.num_kv_heads = 1;
  config.embed_size = 24;
  config.head_size = 10;
  config.ffn_hidden_size = 32;
  return config;
}

void check_same(SmallJob job, int ranks) {
  job.device = {};
  const auto want = train_small_job(job, ranks, 4);
  job.device = emulated_device();
  const auto got = train_small_job(job, ranks, 4);
  for (std::size_t i = 0; i < want.size(); ++i) {
    // Float32 sums in another order; differences grow over four steps.
    CHECK(std::abs(got[i].loss / want[i].loss - 1) < 1e-5);
    CHECK(std::abs(got[i].grad_norm / want[i].grad_norm - 1) < 1e-4);
    CHECK(got[i].tokens == want[i].tokens);
    CHECK(got[i].first_sample == want[i].first_sample);
    REQUIRE(got[i].means.size() == want[i].means.size());
    for (std::size_t m = 0; m < want[i].means.size(); ++m) CHECK(got[i].means[m].value == want[i].means[m].value);
  }
}

/// Records the steps that a loop tells of.
struct Told final : fsdp::detail::StepObserver {
  explicit Told(std::vector<std::string>& its_order) : order(its_order) {}
  void after_step(const StepReport& step, bool last) override {
    order.push_back("told " + std::to_string(step.step));
    reports.push_back(step);
    if (last) lasts.push_back(step.step);
  }
  std::vector<std::string>& order;
  std::vector<StepReport> reports;
  std::vector<std::int64_t> lasts;
};

/// Numbers its marks, from 1.
class MarkingOps final : public EmulatedOps {
 public:
  MarkingOps() : EmulatedOps(emulated::Order::forward) {}
  std::unique_ptr<TimeMark> mark_time() const override { return std::make_unique<Mark>(++marks_); }

 private:
  struct Mark final : TimeMark {
    explicit Mark(int its_number) : number(its_number) {}
    double seconds_since(const TimeMark& earlier) const override {
      return number - static_cast<const Mark&>(earlier).number;
    }
    int number;
  };
  mutable int marks_ = 0;
};

/// Records the engine's actions, in order.
struct ActionLog final : EngineObserver {
  void begin(std::string_view what, std::string_view category) override {
    names.emplace_back(what);
    categories.emplace_back(category);
  }
  void end() override {}
  /// Returns the names after the last one that begins with `start`.
  std::vector<std::string> after(const std::string& start) const {
    auto last = names.end();
    for (auto it = names.begin(); it != names.end(); ++it) {
      if (it->starts_with(start)) last = it;
    }
    return last == names.end() ? std::vector<std::string>() : std::vector<std::string>(last + 1, names.end());
  }
  std::vector<std::string> names, categories;
};

}  // namespace

TEST_SUITE("cuda/fused trainer") {
  TEST_CASE("losses and norms equal the host's, on any number of ranks, in any strategy") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    for (const auto& model : {small_model(), uneven_llama()}) {
      job.model = model;
      for (const int ranks : {1, 2, 4}) {
        for (const auto sharding : {Sharding::full_shard, Sharding::no_shard, Sharding::hybrid_grad_shard}) {
          if (sharding == Sharding::hybrid_grad_shard && ranks != 4) continue;
          CAPTURE(ranks);
          INFO(to_string(sharding));
          job.sharding.sharding = sharding;
          job.sharding.shard_group_size = sharding == Sharding::hybrid_grad_shard ? 2 : 0;
          check_same(job, ranks);
        }
      }
    }
  }

  TEST_CASE("losses and norms equal the host's with dropout, accumulation, recomputation and frozen parameters") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.micro_batch_size = 1;
    job.accumulation_steps = 2;
    check_same(job, 2);
    job.sharding.reduce_every_micro_batch = true;
    job.sharding.checkpoint_every = 1;
    check_same(job, 2);
    job.model.dropout = 0.2;
    check_same(job, 2);
    job.model = uneven_llama();
    job.sharding.freeze.freeze = {"*.k_proj.weight"};
    check_same(job, 2);
  }

  TEST_CASE("losses, norms and named sums equal the host's with other objectives") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.objective = std::make_shared<WeighedById>();
    check_same(job, 2);
    job.objective = std::make_shared<Preference>();
    check_same(job, 1);
    check_same(job, 2);
    job.sharding.sharding = Sharding::no_shard;
    check_same(job, 2);
  }

  TEST_CASE("a value on one rank that is not finite makes all ranks skip the step and changes nothing") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = emulated_device();
    job.sharding.precision = at::kBFloat16;  // cast parameters are separate from the master weights
    run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      auto& engine = rank.runtime.engine();
      const auto first = rank.step();
      CHECK_FALSE(first.skipped);
      if (world.rank() == 1) engine.master_weight(2).view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
      engine.sync_parameters();
      const auto before = engine.master_weight(0).clone(),
                 moment = rank.trainer->optimizer().state("exp_avg", 0).clone();
      const auto cast = engine.all_gather_input(0).clone();
      const auto report = rank.step();
      CHECK(report.skipped);
      CHECK_FALSE(report.overflow);
      CHECK(std::isnan(report.loss));
      CHECK(rank.trainer->state().step == 2);
      CHECK(rank.trainer->state().optimizer_steps == 1);
      CHECK(same_bits(engine.master_weight(0), before));
      CHECK(same_bits(rank.trainer->optimizer().state("exp_avg", 0), moment));
      CHECK(same_bits(engine.all_gather_input(0), cast));
    });
  }

  TEST_CASE("the parameters that models read are the rounded master weights after every step") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = emulated_device();
    job.sharding.precision = at::kBFloat16;
    run_thread_ranks(3, 3, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      for (int step = 0; step < 2; ++step) {
        rank.step();
        auto& engine = rank.runtime.engine();
        for (std::size_t i = 0; i < engine.num_parameters(); ++i)
          CHECK(same_bits(engine.all_gather_input(i), engine.master_weight(i).to(at::kBFloat16)));
      }
    });
  }

  TEST_CASE("the first gathers of the next step start after the updates of their units") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = emulated_device();
    run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      auto& engine = rank.runtime.engine();
      rank.step();
      const auto gathers = engine.counts().shard.all_gathers;
      ActionLog log;
      engine.observers().add(log);
      rank.step();
      const auto per_step = engine.counts().shard.all_gathers - gathers;
      // Units 0 and 1 are the embeddings and the first block: their gathers start before any further computation.
      CHECK(log.after("reduce") == std::vector<std::string>{"AdamW", "gradient norm", "update unit 0", "gather unit 0",
                                                            "update unit 1", "gather unit 1", "update the other units",
                                                            "wait for tokens"});
      CHECK(log.names[1] == "gather unit 0");
      CHECK(log.categories[1] == "collective");  // the step waits for this gather, it does not start it
      // These gathers belong to the next step: every step has the same number.
      rank.step();
      CHECK(engine.counts().shard.all_gathers - gathers == 2 * per_step);
      // An evaluation between two steps uses the gathers, too, and leaves none open.
      MicroBatch batch = rank.loader.read(std::vector<std::int64_t>{0});
      engine.evaluate(batch);
      rank.step();
    });
  }

  TEST_CASE("another thread reads the next step's samples and has finished at the end of a step") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = emulated_device();
    const auto never = [] { return false; };
    const auto with_reader = [&](const auto& body) {
      run_thread_ranks(1, 1, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        WatchedLoader loader(12, 6, job.model.vocab_size);
        TrainerOptions options;
        options.batches = {2, 2, 1};
        options.schedule.peak = 1e-2;
        options.schedule.total_steps = 10;
        Trainer trainer(rank.runtime, loader, options);
        body(trainer, loader);
      });
    };
    std::vector<double> losses;
    with_reader([&](Trainer& trainer, WatchedLoader& loader) {
      for (int step = 0; step < 3; ++step) {
        if (step == 2) loader.delay = std::chrono::milliseconds(300);  // longer than a step
        losses.push_back(trainer.step(12 - 2 * step, never).loss);
        CHECK_FALSE(loader.is_reading());
        CHECK(loader.reads() == step + 2);  // one step ahead
        CHECK(loader.reader() != std::this_thread::get_id());
      }
    });
    with_reader([&](Trainer& trainer, WatchedLoader& loader) {
      CHECK(trainer.step(12, never).loss == losses[0]);
      loader.delay = std::chrono::milliseconds(300);
      CHECK(trainer.step(10, [] { return true; }).stopped);
      CHECK_FALSE(loader.is_reading());
      loader.delay = {};
      // A stopped step starts again with the same samples.
      CHECK(trainer.step(10, never).loss == losses[1]);
      CHECK(trainer.step(2, never).loss == losses[2]);
      const auto reads = loader.reads();
      CHECK(loader.reader() != std::this_thread::get_id());
      CHECK(reads == 5);  // nothing is read after the last step
    });
    with_reader([&](Trainer& trainer, WatchedLoader& loader) {
      loader.damaged = 3;
      CHECK(trainer.step(12, never).loss == losses[0]);
      CHECK_THROWS_AS(trainer.step(10, never), FormatError);
    });
  }

  TEST_CASE("a step begins before the one before it is reported, except where the run needs the state") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.sharding.precision = at::kBFloat16;
    job.device = emulated_device();
    for (const int ranks : {1, 2}) {
      const auto want = train_small_job(job, ranks, 6);
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        auto& trainer = *rank.trainer;
        std::vector<std::string> order;
        Told told(order);
        const Logger log(world.rank(), LogLevel::error);
        Progress progress(log, false, 1);
        IdleRun idle;
        RunExecutor run({world, log, progress, trainer, idle, idle, idle}, {.save_every = 3});
        run.handle(run_event::Started{});
        run.handle(run_event::Ready{true});
        fsdp::detail::TrainLoop loop(trainer, run, {6, 1'000'000}, {&told}, [&] {
          order.push_back("begin " + std::to_string(trainer.state().step + 1));
          return false;
        });
        CHECK_FALSE(loop.run());
        CHECK(order == std::vector<std::string>{"begin 1", "begin 2", "told 1", "begin 3", "told 2", "told 3",
                                                "begin 4", "begin 5", "told 4", "begin 6", "told 5", "told 6"});
        CHECK(told.lasts == std::vector<std::int64_t>{6});
        REQUIRE(told.reports.size() == want.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
          CHECK(told.reports[i].loss == want[i].loss);
          CHECK(told.reports[i].grad_norm == want[i].grad_norm);
          CHECK(told.reports[i].lr == want[i].lr);
          CHECK(told.reports[i].first_sample == want[i].first_sample);
          CHECK(told.reports[i].shard_all_gathers == want[i].shard_all_gathers);
        }
        CHECK(trainer.state().step == 6);
        CHECK(trainer.state().optimizer_steps == 6);
      });
    }
  }

  TEST_CASE("a step that has begun behind a skipped one is undone and begins again") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = emulated_device();
    job.sharding.precision = at::kBFloat16;
    constexpr std::int64_t kAll = 1'000'000;
    const auto never = [] { return false; };
    FullState want, got;
    std::vector<double> losses;
    const auto set_weight = [](SmallJobRank& rank, float value) {
      const auto weight = rank.runtime.engine().master_weight(2).view({-1})[0];
      const auto before = weight.item<float>();
      weight.fill_(value);
      rank.runtime.engine().sync_parameters();
      return before;
    };
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      const auto note = [&](const StepReport& step) {
        if (world.rank() == 0) losses.push_back(step.loss);
      };
      note(rank.step());
      note(rank.step());
      const auto before = set_weight(rank, kNaN);
      CHECK(rank.step().skipped);
      set_weight(rank, before);
      note(rank.step());
      collect_state(rank, want);
    });
    run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      auto& trainer = *rank.trainer;
      CHECK(trainer.begins_early());
      CHECK(trainer.begin_step(kAll, never));
      CHECK(trainer.begin_step(kAll, never));
      CHECK(trainer.finish_step().loss == losses[0]);
      const auto before = set_weight(rank, kNaN);
      CHECK(trainer.begin_step(kAll, never));
      CHECK(trainer.finish_step().loss == losses[1]);
      set_weight(rank, before);
      CHECK(trainer.begin_step(kAll, never));  // with a finite loss
      CHECK(trainer.steps_under_way() == 2);
      const auto skipped = trainer.finish_step();
      CHECK(skipped.skipped);
      CHECK(skipped.step == 3);
      CHECK(trainer.steps_under_way() == 0);
      CHECK(trainer.state().step == 3);
      CHECK(trainer.state().samples == skipped.first_sample + skipped.samples);
      CHECK(trainer.state().optimizer_steps == 2);
      const auto again = rank.step();
      CHECK(again.step == 4);
      CHECK(again.loss == losses[2]);
      collect_state(rank, got);
    });
    for (std::size_t i = 0; i < want.master_weights.size(); ++i) {
      CHECK(same_bits(got.master_weights[i], want.master_weights[i]));
      CHECK(same_bits(got.states.at("exp_avg_sq")[i], want.states.at("exp_avg_sq")[i]));
    }
  }

  TEST_CASE("only steps that the device decides about, without a loss scale, begin early") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    const auto early = [&] {
      bool is_early = false;
      run_thread_ranks(1, 1, [&](ProcessGroup& world) { is_early = SmallJobRank(world, job).trainer->begins_early(); });
      return is_early;
    };
    CHECK_FALSE(early());
    job.device = emulated_device();
    CHECK(early());
    job.sharding.precision = at::kHalf;
    CHECK_FALSE(early());
  }

  TEST_CASE("the device's gap is from the end of a step to the first forward of the next") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device.ops = std::make_shared<MarkingOps>();
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      auto& trainer = *rank.trainer;
      CHECK(rank.step().device_gap_seconds == 0);  // marks 1 and 2
      CHECK(rank.step().device_gap_seconds == 1);  // marks 3 and 4
      static_cast<void>(job.device.ops->mark_time());
      CHECK(trainer.begin_step(1'000'000, [] { return false; }));  // marks 6 and 7
      CHECK(trainer.begin_step(1'000'000, [] { return false; }));  // marks 8 and 9
      CHECK(trainer.finish_step().device_gap_seconds == 2);
      CHECK(trainer.finish_step().device_gap_seconds == 1);
    });
  }

  TEST_CASE("too large a loss scale is halved, and the update is skipped") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.device = emulated_device();
    job.sharding.precision = at::kHalf;
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      rank.trainer->state().loss_scale = 1e30;
      const auto report = rank.step();
      CHECK(report.overflow);
      CHECK(report.skipped);
      CHECK(std::isfinite(report.loss));
      CHECK(rank.trainer->state().loss_scale == 0.5e30);
      rank.trainer->state().loss_scale = 256;
      const auto next = rank.step();
      CHECK_FALSE(next.skipped);
      CHECK(rank.trainer->state().optimizer_steps == 1);
    });
  }
}
