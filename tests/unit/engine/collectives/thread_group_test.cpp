#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include "lib/base/types/error.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/support/group_checks.hpp"

using namespace fsdp;
using namespace fsdp::test;
using namespace std::chrono_literals;

namespace {

/// Returns the message that run_thread_ranks throws, and the elapsed time.
std::pair<std::string, std::chrono::milliseconds> failure(int ranks, std::chrono::milliseconds timeout,
                                                          const std::function<void(ProcessGroup&)>& body) {
  const auto start = std::chrono::steady_clock::now();
  std::string what = "nothing was thrown";
  try {
    run_thread_ranks(ranks, ranks, body, timeout);
  } catch (const Error& error) {
    what = error.what();
  }
  return {what, std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start)};
}

}  // namespace

TEST_SUITE("comm/thread_group") {
  TEST_CASE("thread ranks: every operation is exact") {
    at::set_num_threads(1);
    for (const int ranks : {1, 2, 3, 4, 7}) {
      INFO(ranks, " ranks");
      run_thread_ranks(ranks, ranks, [](ProcessGroup& group) {
        check_everything(group);
        check_splits(group);
      });
    }
  }

  TEST_CASE("split_by_node: ranks on one node share memory, nodes do not") {
    run_thread_ranks(5, 2, [](ProcessGroup& group) {
      const auto node = group.split_by_node();
      CHECK(node->size() == (group.rank() == 4 ? 1 : 2));
      CHECK(node->rank() == group.rank() % 2);
      CHECK(check_peer_memory(*node));
      CHECK_FALSE(check_peer_memory(group));
    });
  }

  TEST_CASE("failure: the first error is thrown, and wakes ranks that wait in a collective") {
    const auto [what, time] = failure(3, 60s, [](ProcessGroup& group) {
      if (group.rank() == 1) throw RequestError("rank 1 broke");
      group.barrier();
    });
    CHECK(what == "rank 1 broke");
    CHECK(time < 5s);
  }

  TEST_CASE("failure: wakes ranks that wait in peer memory") {
    const auto [what, time] = failure(3, 60s, [](ProcessGroup& group) {
      const auto memory = group.peer_memory(64, 3);
      if (group.rank() == 1) throw RequestError("rank 1 broke");
      wait_for_counter(group, memory->counter(1), 1, 1, "a test");
    });
    CHECK(what == "rank 1 broke");
    CHECK(time < 5s);
  }

  TEST_CASE("timeout: names the missing rank by its world rank") {
    // Long enough for every rank to leave the split even on a busy machine.
    const auto [what, time] = failure(4, 2s, [](ProcessGroup& world) {
      const auto group = world.split(world.rank() % 2);
      if (world.rank() == 1) group->barrier();
    });
    CHECK(what == "did not arrive in time: rank 3");
    CHECK(time < 5s);
  }

  TEST_CASE("wait_for_counter: after the timeout, names the rank and the operation") {
    const auto [what, time] = failure(4, 2s, [](ProcessGroup& world) {
      const auto group = world.split(world.rank() % 2);
      const auto memory = group->peer_memory(64, 2);
      if (world.rank() == 1) wait_for_counter(*group, memory->counter(1), 1, 1, "the gather of unit 4");
    });
    CHECK(what.find("rank 3 did not arrive at the gather of unit 4") == 0);
    CHECK(time < 5s);
  }
}

TEST_SUITE("comm/process_group") {
  TEST_CASE("single group: every operation") {
    const auto group = make_single_group();
    check_everything(*group);
    check_everything(*group->split(7));
    check_everything(*group->split_by_node());
    CHECK(group->world_rank(0) == 0);
  }
}
