#include "apps/common/check_options.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"

using namespace fsdp;

TEST_SUITE("apps/check_options") {
  TEST_CASE("a floor of the learning rate needs a schedule that falls") {
    TrainOptions options;
    options.schedule.min_ratio = 0.1;
    CHECK_THROWS_AS(check_schedule_options(options), UsageError);
    options.schedule.shape = LrSchedule::Shape::cosine;
    CHECK_NOTHROW(check_schedule_options(options));
    options.min_lr = 1e-5;
    CHECK_THROWS_AS(check_schedule_options(options), UsageError);  // one of the two
    options.schedule.min_ratio = 0;
    options.schedule.peak = 1e-4;
    CHECK_NOTHROW(check_schedule_options(options));
    options.min_lr = 2e-4;
    CHECK_THROWS_AS(check_schedule_options(options), UsageError);  // above the peak
  }

  TEST_CASE("the decay belongs to wsd, and a value to the schedules that have one") {
    TrainOptions options;
    options.schedule.decay_steps = 50;
    CHECK_THROWS_AS(check_schedule_options(options), UsageError);
    options.schedule.shape = LrSchedule::Shape::wsd;
    CHECK_NOTHROW(check_schedule_options(options));
    options.schedule = {};
    options.schedule.shape = LrSchedule::Shape::linear;
    options.schedule.value = 2;
    CHECK_THROWS_AS(check_schedule_options(options), UsageError);
  }

  TEST_CASE("an option that needs another one, and the field of an adapter that peft wrote without") {
    TrainOptions options;
    options.sharding.lora.rank = 4;
    options.sharding.lora.ensure_weight_tying = true;
    CHECK_THROWS_AS(check_adapter_options(options), UsageError);
    options.adapter = "adapter";
    CHECK_NOTHROW(check_adapter_options(options));
    options.adapter.clear();
    options.restart_checkpoint = "latest";
    CHECK_NOTHROW(check_adapter_options(options));
  }

  TEST_CASE("options of another optimizer, and those of one that contradict each other, are refused by name") {
    TrainOptions options;
    options.optimizer.nesterov = true;
    CHECK_THROWS_WITH_AS(check_optimizer_options(options), doctest::Contains("--nesterov belongs to --optimizer sgd"),
                         UsageError);
    options.optimizer.kind = "sgd";
    CHECK_THROWS_WITH_AS(check_optimizer_options(options), doctest::Contains("--nesterov needs momentum"), UsageError);
    options.optimizer.momentum = 0.9;
    CHECK_NOTHROW(check_optimizer_options(options));
    options.fisher_samples = kFisherSamples + 1;
    CHECK_THROWS_AS(check_optimizer_options(options), UsageError);
  }
}
