#include "lib/ranks/rank_threads.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>

#include "tests/support/environment.hpp"

namespace {

/// While an object lives, this thread may use one core only.
class OnOneCore {
 public:
  OnOneCore() {
    ::sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(fsdp::allowed_cores().front()), &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;
  ~OnOneCore() { ::sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_{};
};

}  // namespace

TEST_SUITE("ranks/rank_threads") {
  TEST_CASE("ranks_sharing: all may use all, halves, and a rank between two others") {
    using fsdp::detail::ranks_sharing;
    CHECK(ranks_sharing({{0, 1}, {0, 1}}, 1) == 2);
    CHECK(ranks_sharing({{0, 1}, {2, 3}}, 0) == 1);
    const std::vector<std::vector<int>> chain{{0, 1}, {1, 2}, {2, 3}};
    CHECK(ranks_sharing(chain, 0) == 2);
    CHECK(ranks_sharing(chain, 1) == 3);
  }

  TEST_CASE(
      "threads_on_node: what mpirun of Open MPI binds to one of several cores is told; what other launchers bind is "
      "not") {
    if (fsdp::allowed_cores().size() < 2) {
      MESSAGE("SKIPPED: this process may use one core only, so nothing can be bound");
      return;
    }
    const auto group = fsdp::make_single_group();
    const OnOneCore bound;
    {
      const fsdp::test::Environment hydra({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
      const auto count = fsdp::threads_on_node(*group);
      CHECK(count.threads == 1);
      CHECK(count.warning.empty());
    }
    const fsdp::test::Environment open_mpi({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
    CHECK(fsdp::threads_on_node(*group).warning.find("--bind-to none") != std::string::npos);
  }
}
