#include "lib/training/step/plan.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "tests/support/advice_of.hpp"

using fsdp::TrainOptions;

TEST_SUITE("train/plan") {
  TEST_CASE("a step is batch size x ranks x accumulation, or what is asked for") {
    TrainOptions options;
    options.batch_size = 4;
    CHECK(fsdp::plan_batches(options, 3).rows_per_step == 12);
    options.gradient_accumulation_steps = 2;
    CHECK(fsdp::plan_batches(options, 3).rows_per_step == 24);
    options.gradient_accumulation_steps = 0;
    options.total_batch_size = 36;
    CHECK(fsdp::plan_batches(options, 3).accumulation_steps == 3);
  }

  TEST_CASE("what does not divide names the nearest that do; what a checkpoint says is dealt out") {
    TrainOptions options;
    options.batch_size = 4;
    options.total_batch_size = 30;
    const auto advice = fsdp::test::advice_of([&] { fsdp::plan_batches(options, 3); });
    CHECK(advice.remedy == fsdp::Remedy::other_batch);
    CHECK(advice.subject == "24 or 36");

    options.total_batch_restored = true;
    const auto plan = fsdp::plan_batches(options, 3);
    CHECK(plan.rows_per_step == 30);
    CHECK(plan.accumulation_steps == 3);
    CHECK(plan.micro_batch_size == 4);
  }

  TEST_CASE("an accumulation that contradicts the step's sequences is refused") {
    TrainOptions options;
    options.total_batch_size = 8;
    options.gradient_accumulation_steps = 3;
    CHECK_THROWS_AS(fsdp::plan_batches(options, 1), fsdp::RequestError);
  }

  TEST_CASE("epochs are whole steps, the last of them perhaps smaller") {
    TrainOptions options;
    options.max_epochs = 2;
    CHECK(fsdp::plan_steps(options, 10, 8) == 3);
    options.max_steps = 7;
    CHECK(fsdp::plan_steps(options, 10, 8) == 7);
    options.max_steps = 0;
    options.max_epochs = std::numeric_limits<double>::infinity();
    CHECK_THROWS_AS(fsdp::plan_steps(options, 10, 8), fsdp::RequestError);
  }

  TEST_CASE("the warm-up is a share of the schedule where no steps are given") {
    TrainOptions options;
    options.warmup_ratio = 0.1;
    CHECK(fsdp::plan_schedule(options, 200).warmup_steps == 20);
    options.schedule.warmup_steps = 7;
    CHECK(fsdp::plan_schedule(options, 200).warmup_steps == 7);
    options.schedule.total_steps = 50;
    CHECK(fsdp::plan_schedule(options, 200).total_steps == 50);
  }

  TEST_CASE("a floor of the learning rate is a share of its peak") {
    TrainOptions options;
    options.schedule.shape = fsdp::LrSchedule::Shape::cosine;
    options.schedule.peak = 1e-4;
    options.min_lr = 1e-5;
    CHECK(fsdp::plan_schedule(options, 200).min_ratio == doctest::Approx(0.1));
  }

  TEST_CASE("the decay of wsd fits behind the warm-up") {
    TrainOptions options;
    options.schedule.decay_steps = 50;
    options.schedule.shape = fsdp::LrSchedule::Shape::wsd;
    CHECK(fsdp::plan_schedule(options, 200).decay_steps == 50);
    options.schedule.warmup_steps = 151;
    CHECK_THROWS_WITH_AS(fsdp::plan_schedule(options, 200), doctest::Contains("151 steps"), fsdp::RequestError);
    options.schedule.decay_steps = 0;
    CHECK(fsdp::plan_schedule(options, 200).decay_steps == 20);
  }

  TEST_CASE("a run lies below --out-dir") {
    TrainOptions options;
    options.out_dir = "out";
    options.model.model = "org/name@main";
    CHECK(fsdp::run_directory(options) == "out/name");
    options.run_name = "a/b";
    CHECK(fsdp::run_directory(options) == "out/a/b");
    for (const char* name : {"..", "/tmp/x", "a/../../b", "a\nb", ".", "token-cache", "./token-cache/a"}) {
      options.run_name = name;
      CHECK_THROWS_AS(fsdp::run_directory(options), fsdp::RequestError);
    }
    for (const char* name : {"a/checkpoints", "a/checkpoints/step-00000004", "a/checkpoints/latest", "a/.owner",
                             "checkpoints", "a/./checkpoints/"}) {
      options.run_name = name;
      CHECK_THROWS_WITH_AS(fsdp::run_directory(options), doctest::Contains("keep their own files"), fsdp::RequestError);
    }
    options.run_name = "a/checkpoints-of-mine";
    CHECK(fsdp::run_directory(options) == "out/a/checkpoints-of-mine");
    options.run_name = "a/" + std::string(255, 'x');
    CHECK(fsdp::run_directory(options) == "out/" + options.run_name);
    options.run_name += "x";
    CHECK_THROWS_WITH_AS(fsdp::run_directory(options), doctest::Contains("256 bytes"), fsdp::RequestError);
    options.run_name = "a";
    options.out_dir = std::string(256, 'x');
    CHECK_THROWS_WITH_AS(fsdp::run_directory(options), doctest::Contains("256 bytes"), fsdp::RequestError);
  }
}
