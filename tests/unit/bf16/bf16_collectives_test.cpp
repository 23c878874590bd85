#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include <map>
#include <utility>
#include <vector>

#include "lib/bf16/bf16_collectives.hpp"
#include "lib/ranks/thread_group.hpp"

using namespace fsdp;

namespace {

std::unique_ptr<Bf16Collectives> host_reducer(ProcessGroup& group) {
  return make_bf16_collectives(make_host_collectives(group), [] {});
}

/// A reducer that adds 1 to an element after the sum.
class Faulty final : public Bf16Collectives {
 public:
  Faulty(std::unique_ptr<Bf16Collectives> inner, std::int64_t element) : inner_(std::move(inner)), element_(element) {}
  void all_reduce(const at::Tensor& bf16) override {
    inner_->all_reduce(bf16);
    if (bf16.numel() > element_) bf16[element_] += 1;
  }
  void all_gather(const at::Tensor& shard, const at::Tensor& full) override {
    inner_->all_gather(shard, full);
    if (full.numel() > element_ && ++calls_ % 7 == 0) full[element_] += 1;
  }
  void reduce_scatter(const at::Tensor& full, const at::Tensor& shard) override {
    inner_->reduce_scatter(full, shard);
    if (shard.numel() > element_) shard[element_] += 1;
  }

 private:
  std::unique_ptr<Bf16Collectives> inner_;
  std::int64_t element_;
  int calls_ = 0;
};

/// A reducer that adds in bf16, like a ring that rounds at every step.
class Rounding final : public Bf16Collectives {
 public:
  explicit Rounding(ProcessGroup& group) : collectives_(make_host_collectives(group)), ranks_(group.size()) {}
  void all_reduce(const at::Tensor& bf16) override {
    auto all = at::empty({ranks_, bf16.numel()}, bf16.options());
    const TensorGather gather{bf16, all};
    collectives_->all_gather(std::span(&gather, 1))->wait();
    bf16.copy_(all[0]);
    for (int r = 1; r < ranks_; ++r) bf16.add_(all[r]);
  }
  void all_gather(const at::Tensor&, const at::Tensor&) override {}
  void reduce_scatter(const at::Tensor&, const at::Tensor&) override {}

 private:
  std::unique_ptr<TensorCollectives> collectives_;
  int ranks_;
};

const c10::Device kHere(c10::kCPU);
const CollectiveBudget kSmall{1 << 20, 0.01};

}  // namespace

TEST_SUITE("bf16/reduce") {
  TEST_CASE("exact_value: bf16 represents every partial sum, and values repeat") {
    for (const int ranks : {1, 2, 3, 8, 100, 101, 640, 4096}) {
      CAPTURE(ranks);
      const auto period = fsdp::detail::exact_period(ranks);
      bool varies = false;
      for (std::int64_t i = 0; i < period; ++i) {
        int size = 0, sum = 0;
        for (int r = 0; r < ranks; ++r) {
          const int value = fsdp::detail::exact_value(r, ranks, i);
          size += std::abs(value);
          sum += value;
          if (value != fsdp::detail::exact_value(r, ranks, i + period)) FAIL("not periodic");
        }
        if (size > 256) FAIL("a partial sum may need more than 8 bits");
        if (sum != fsdp::detail::exact_sum(ranks, i)) FAIL("the sum is wrong");
        varies = varies || fsdp::detail::exact_value(0, ranks, i) != fsdp::detail::exact_value(0, ranks, 0);
      }
      CHECK(varies);
    }
  }

  TEST_CASE("pair_color: every node meets each of its two neighbours in the ring once") {
    for (const int nodes : {3, 4, 5, 6, 7, 32}) {
      std::map<std::pair<int, int>, int> met;
      for (int round = 0; round < 2 + nodes % 2; ++round) {
        std::map<int, std::vector<int>> groups;
        for (int node = 0; node < nodes; ++node) groups[fsdp::detail::pair_color(node, nodes, round)].push_back(node);
        for (const auto& [color, members] : groups) {
          CHECK(members.size() <= 2);
          if (members.size() == 2) ++met[{members[0], members[1]}];
        }
      }
      std::map<std::pair<int, int>, int> ring{{{0, nodes - 1}, 1}};
      for (int node = 0; node + 1 < nodes; ++node) ring[{node, node + 1}] = 1;
      CHECK(met == ring);
    }
  }

  TEST_CASE("measure_reduce: collectives and shared memory sum exactly, in float32") {
    at::set_num_threads(1);
    for (const int ranks : {1, 2, 3, 5}) {
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& group) {
        const auto by_memory = make_shared_memory_collectives(group, kSmall.bytes);
        REQUIRE(by_memory != nullptr);
        const auto by_collectives = host_reducer(group);
        for (auto* reducer : {by_memory.get(), by_collectives.get()}) {
          const auto facts = measure_reduce(group, *reducer, kHere, kSmall);
          CHECK(facts.ranks == ranks);
          CHECK(facts.wrong == "");
          CHECK(facts.bytes == 1 << 20);
          CHECK((facts.bus_gb_per_s > 0) == (ranks > 1));
          CHECK(facts.sums_in == (ranks > 2 ? "float32" : ""));
          auto budget = kSmall;
          budget.checks = 3;
          for (const auto& moved :
               {measure_gather(group, *reducer, kHere, budget), measure_scatter(group, *reducer, kHere, budget)}) {
            CHECK(moved.wrong == "");
            CHECK(moved.bytes == 1 << 20);
            CHECK((moved.bus_gb_per_s > 0) == (ranks > 1));
          }
        }
      });
    }
  }

  TEST_CASE("measure_reduce: tensors grow when there is time") {
    at::set_num_threads(1);
    run_thread_ranks(2, 2, [](ProcessGroup& group) {
      const auto reducer = host_reducer(group);
      CHECK(measure_reduce(group, *reducer, kHere, {(3 << 20) + 4096, 30}).bytes == (3 << 20) + 4096);
    });
  }

  TEST_CASE("make_shared_memory_collectives: null when the ranks are on two nodes") {
    run_thread_ranks(2, 1, [](ProcessGroup& group) { CHECK(make_shared_memory_collectives(group, 4096) == nullptr); });
  }

  TEST_CASE("measure_reduce: a wrong element is reported") {
    at::set_num_threads(1);
    run_thread_ranks(3, 3, [](ProcessGroup& group) {
      Faulty reducer(host_reducer(group), 70001);
      const auto facts = measure_reduce(group, reducer, kHere, kSmall);
      CAPTURE(facts.wrong);
      CHECK(facts.wrong.find("element 70001 is ") == 0);
      const auto sum = fsdp::detail::exact_sum(3, 70001);
      CHECK(facts.wrong.find("is " + std::to_string(sum + 1) + ", the exact sum is " + std::to_string(sum)) !=
            std::string::npos);
    });
  }

  TEST_CASE("measure_scatter: a wrong element is reported") {
    at::set_num_threads(1);
    run_thread_ranks(3, 3, [](ProcessGroup& group) {
      Faulty reducer(host_reducer(group), 70001);
      const auto wrong = measure_scatter(group, reducer, kHere, kSmall).wrong;
      CAPTURE(wrong);
      CHECK(wrong.find("element 70001 is ") == 0);
      CHECK(wrong.find(", the exact sum is ") != std::string::npos);
    });
  }

  TEST_CASE("measure_gather: an element that is wrong now and then is found by more checks") {
    at::set_num_threads(1);
    run_thread_ranks(2, 2, [](ProcessGroup& group) {
      Faulty reducer(host_reducer(group), 70001);
      auto budget = kSmall;
      budget.checks = 7;
      const auto wrong = measure_gather(group, reducer, kHere, budget).wrong;
      CAPTURE(wrong);
      CHECK(wrong.find("from rank 0: element 70001 is ") == 0);
      CHECK(wrong.find(" of 7)") != std::string::npos);
    });
  }

  TEST_CASE("measure_reduce: rounding at every step is distinguished from rounding at the end") {
    at::set_num_threads(1);
    run_thread_ranks(4, 4, [](ProcessGroup& group) {
      Rounding reducer(group);
      const auto facts = measure_reduce(group, reducer, kHere, kSmall);
      CHECK(facts.wrong == "");
      CHECK(facts.sums_in == "bf16");
    });
  }
}
