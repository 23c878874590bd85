// Step times: on a host, work runs sequentially; on a GPU, it overlaps with transfers and follows the host's launches.
#include <doctest/doctest.h>

#include "lib/planning/speed/step_time.hpp"

namespace fsdp::test {
namespace {

/// A device with round numbers.
DeviceRates round_rates(bool is_gpu) {
  DeviceRates rates;
  rates.is_gpu = is_gpu;
  rates.float32_flops = 1e9;
  rates.half_flops = 2e9;
  rates.bytes_per_second = rates.update_bytes_per_second = 1e9;
  rates.link_bytes_per_second = 1e9;
  rates.network_bytes_per_second = 1e8;
  rates.host_bytes_per_second = 1e9;
  return rates;
}

WorkItem product(double m, double n, double k) {
  WorkItem item;
  item.kind = WorkItem::Kind::product;
  item.m = m;
  item.n = n;
  item.k = k;
  return item;
}

WorkItem pass(double bytes) {
  WorkItem item;
  item.bytes = bytes;
  return item;
}

TransferWork gather(double bytes, int ranks, int nodes = 1, int at_once = 1) {
  TransferWork transfer;
  transfer.bytes = bytes;
  transfer.ranks = ranks;
  transfer.nodes = nodes;
  transfer.groups_at_once = at_once;
  return transfer;
}

}  // namespace

TEST_SUITE("speed/step_time") {
  TEST_CASE("the update of a GPU's rank in host memory: the device waits, and the ranks of a node share its memory") {
    WorkLog log;
    log.begin("AdamW", "optimizer");
    auto update = pass(1e11);  // 1 s of a node's memory
    update.on_host = true;
    log.add(update);
    log.end();
    log.add(pass(2e9));  // 2 s of the device
    CHECK(time_of_step(log, round_rates(true)).seconds == doctest::Approx(3));
    CHECK(time_of_step(log, round_rates(true)).of(TimeCause::update) == doctest::Approx(1));
    CHECK(time_of_step(log, round_rates(true), {.ranks = 4}).seconds == doctest::Approx(6));
    CHECK(time_of_step(log, round_rates(false), {.ranks = 4}).seconds == doctest::Approx(102));  // at the core's rate
  }

  TEST_CASE("a host's work adds up, by part and by cause") {
    WorkLog log;
    log.begin("forward block 0", "compute");
    log.add(product(1000, 1000, 500));  // 1 s
    log.end();
    log.begin("recompute block 0", "compute");
    log.add(product(1000, 1000, 250));  // 0.5 s
    log.end();
    log.begin("head and loss", "compute");
    log.add(pass(2e9));
    log.end();
    log.begin("AdamW", "optimizer");
    log.begin("publish parameters", "schedule");
    log.add(pass(3e9));
    log.end();
    log.end();

    const auto time = time_of_step(log, round_rates(false));

    CHECK(time.seconds == doctest::Approx(6.5));
    CHECK(time.of(StepPart::block) == doctest::Approx(1.5));
    CHECK(time.of(StepPart::head) == doctest::Approx(2));
    CHECK(time.of(StepPart::update) == doctest::Approx(3));
    CHECK(time.of(TimeCause::products) == doctest::Approx(1));
    CHECK(time.of(TimeCause::recomputation) == doctest::Approx(0.5));
    CHECK(describe_causes(time) == "update 46 %, passes 31 %, products 15 %, recomputation 8 %");
  }

  TEST_CASE("half a core takes twice as long, and idle cores leave more memory bandwidth") {
    WorkLog log;
    log.add(pass(1e9));
    auto rates = round_rates(false);
    rates.alone_factor = 1.5;
    CHECK(time_of_step(log, rates, {0.5, 1}).seconds == doctest::Approx(2));
    CHECK(time_of_step(log, rates, {2, 1}).seconds == doctest::Approx(0.5));
    CHECK(time_of_step(log, rates, {1, 0.5}).seconds == doctest::Approx(0.8));
  }

  TEST_CASE("repeated work counts as often as it is repeated") {
    WorkLog log;
    log.begin_repeat(10);
    log.add(pass(1e8));
    log.begin_repeat(3);
    log.add(pass(1e8));
    log.end_repeat();
    log.end_repeat();
    CHECK(time_of_step(log, round_rates(false)).seconds == doctest::Approx(4));
  }

  TEST_CASE("a GPU computes during a transfer and waits for the rest of it") {
    for (const bool is_gpu : {true, false}) {
      WorkLog log;
      const int id = log.start(gather(4e9, 2));  // 2 s
      log.add(pass(1.5e9));
      log.wait(id);
      const auto time = time_of_step(log, round_rates(is_gpu));
      CHECK(time.seconds == doctest::Approx(is_gpu ? 2 : 3.5));
      CHECK(time.of(TimeCause::communication) == doctest::Approx(is_gpu ? 0.5 : 2));
    }
  }

  TEST_CASE("a GPU's step includes the transfers started for the next step") {
    WorkLog log;
    log.start(gather(4e9, 2));  // 2 s
    log.add(pass(1.5e9));
    const auto time = time_of_step(log, round_rates(true));
    CHECK(time.seconds == doctest::Approx(2));
    CHECK(time.of(TimeCause::communication) == doctest::Approx(0.5));
  }

  TEST_CASE("transfers of a device run one after another, after the work launched before") {
    WorkLog log;
    log.add(pass(1e9));
    const int first = log.start(gather(2e9, 2)), second = log.start(gather(2e9, 2));
    log.wait(first);
    log.add(pass(5e8));
    log.wait(second);
    CHECK(time_of_step(log, round_rates(true)).seconds == doctest::Approx(3));
  }

  TEST_CASE("across nodes, a node's groups share the network; an all-reduce moves data twice") {
    const auto seconds = [](TransferWork transfer) {
      WorkLog log;
      log.wait(log.start(transfer));
      return time_of_step(log, round_rates(true)).seconds;
    };
    CHECK(seconds(gather(4e8, 4)) == doctest::Approx(0.3));
    CHECK(seconds(gather(4e8, 4, 2)) == doctest::Approx(3));
    CHECK(seconds(gather(4e8, 4, 2, 2)) == doctest::Approx(6));
    auto sum = gather(4e8, 4);
    sum.kind = TransferWork::Kind::all_reduce;
    CHECK(seconds(sum) == doctest::Approx(0.6));
    CHECK(seconds(gather(4e8, 1)) == 0);
  }

  TEST_CASE("a GPU with small operations waits for its host") {
    WorkLog log;
    for (int i = 0; i < 100; ++i) log.add(pass(1e3));
    auto rates = round_rates(true);
    rates.launch_seconds = 1e-3;
    const auto time = time_of_step(log, rates);
    CHECK(time.seconds == doctest::Approx(0.1).epsilon(0.01));
    CHECK(time.of(TimeCause::launches) > 0.9 * time.seconds);
  }

  TEST_CASE("a product that leaves multiprocessors idle counts as small") {
    auto rates = round_rates(true);
    rates.multiprocessors = 4;
    const auto of = [&](const WorkItem& item) {
      WorkLog log;
      log.begin("forward block 0", "compute");
      log.add(item);
      log.end();
      return time_of_step(log, rates);
    };
    // Four tiles of 128 take one wave; five take two.
    const auto full = of(product(512, 128, 64)), more = of(product(640, 128, 64));
    CHECK(full.of(TimeCause::small_products) == doctest::Approx(0));
    CHECK(more.seconds == doctest::Approx(2 * full.seconds));
    CHECK(more.of(TimeCause::small_products) == doctest::Approx(0.75 * full.seconds));
    // A product with few rows still takes one tile.
    CHECK(of(product(512, 8, 64)).seconds == doctest::Approx(full.seconds));
  }

  TEST_CASE("micro-batches that are not recorded take as long as the last one") {
    const auto rates = round_rates(false);
    const auto add_micro_batches = [](WorkLog& log, int count) {
      log.begin("forward block 0", "compute");
      for (int i = 0; i < count; ++i) log.add(product(512, 128, 64 * (i == 0 ? 3 : 1)));  // the first one is longer
      log.end();
    };
    StepWork work;
    add_micro_batches(work.log, 3);
    add_micro_batches(work.before_last, 2);
    work.more = 7;
    WorkLog all;
    add_micro_batches(all, 10);
    const auto found = time_of_step(work, rates), expected = time_of_step(all, rates);
    CHECK(found.seconds == doctest::Approx(expected.seconds));
    CHECK(found.of(TimeCause::products) == doctest::Approx(expected.of(TimeCause::products)));
    work.more = 0;
    CHECK(time_of_step(work, rates).seconds == doctest::Approx(time_of_step(work.log, rates).seconds));
  }

  TEST_CASE("what_costs names the largest difference, relative to the faster step's time per token") {
    StepTime fast, slow;
    fast.seconds = 10;
    fast.causes[static_cast<std::size_t>(TimeCause::products)] = 10;
    slow.seconds = 28;
    slow.causes[static_cast<std::size_t>(TimeCause::products)] = 20;
    slow.causes[static_cast<std::size_t>(TimeCause::communication)] = 8;
    CHECK(what_costs(slow, 200, fast, 100) == "communication +40 %");
    CHECK(what_costs(fast, 100, fast, 100).empty());
  }
}

}  // namespace fsdp::test
