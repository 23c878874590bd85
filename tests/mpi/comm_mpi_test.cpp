#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include <thread>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/mpi_environment.hpp"
#include "lib/ranks/mpi_group.hpp"
#include "tests/support/group_checks.hpp"
#include "tests/support/mpi_test.hpp"

using namespace fsdp;
using namespace fsdp::test;
using namespace std::chrono_literals;

namespace {

std::unique_ptr<ProcessGroup> world_with_timeout(std::chrono::milliseconds timeout) {
  MPI_Comm comm = MPI_COMM_NULL;
  fsdp::detail::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return std::make_unique<fsdp::detail::MpiGroup>(fsdp::detail::UniqueComm(comm), MpiOptions{timeout, timeout});
}

template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_SUITE("comm/mpi") {
  TEST_CASE("MPI ranks: every operation is exact in the world group and its subgroups") {
    at::set_num_threads(1);
    check_everything(mpi_world());
    check_splits(mpi_world());
    const auto node = mpi_world().split_by_node();
    check_everything(*node);
  }

  TEST_CASE("peer memory: ranks of one node share it") {
    const auto node = mpi_world().split_by_node();
    CHECK(check_peer_memory(*node));
  }

  TEST_CASE("library_version: one line that names the library") {
    const auto version = MpiEnvironment::library_version();
    CHECK(!version.empty());
    CHECK(version.find('\n') == std::string::npos);
    CHECK(launched_by_mpi());
  }

  TEST_CASE("timeout: a wait names the missing rank and no other") {
    const int last = mpi_world().size() - 1;
    if (last == 0 || last == 2) return;  // three ranks: the next test case
    const auto group = world_with_timeout(500ms);
    if (group->rank() == last) std::this_thread::sleep_for(4500ms);  // outlasts the liveness probe of the others
    const auto what = error_of([&] { group->barrier(); });
    if (group->rank() != last) CHECK(what.find("did not arrive: rank " + std::to_string(last)) != std::string::npos);
    mpi_world().barrier();
  }

  TEST_CASE("timeout: a rank that arrives late is not called missing") {
    if (mpi_world().size() != 3) return;
    const auto group = world_with_timeout(4s);
    if (group->rank() == 1) std::this_thread::sleep_for(3500ms);
    if (group->rank() == 2) std::this_thread::sleep_for(8000ms);
    const auto what = error_of([&] { group->barrier(); });
    if (group->rank() != 2) {
      INFO(what);
      CHECK(what.find("did not arrive: rank 2") != std::string::npos);
    }
    mpi_world().barrier();
  }

  TEST_CASE("timeout: a wait in peer memory names the missing rank and the operation") {
    const int last = mpi_world().size() - 1;
    const auto group = world_with_timeout(300ms);
    const auto memory = group->peer_memory(64, 1);
    REQUIRE(memory != nullptr);
    if (last > 0 && group->rank() == 0) {
      const auto what =
          error_of([&] { wait_for_counter(*group, memory->counter(0), 1, last, "the gather of unit 2"); });
      CHECK(what.find("rank " + std::to_string(last) + " did not arrive at the gather of unit 2") == 0);
    }
    mpi_world().barrier();
  }
}
