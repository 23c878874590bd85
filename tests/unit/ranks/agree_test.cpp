#include "lib/ranks/agree.hpp"

#include <doctest/doctest.h>

#include <atomic>

#include "lib/base/types/error.hpp"
#include "lib/ranks/thread_group.hpp"

using fsdp::ProcessGroup;

namespace {

/// Runs `action` through run_agreed() on each of `ranks` thread ranks. \return the number of ranks that throw an E with
/// this text
template <typename E>
int ranks_that_throw(int ranks, const std::string& text, const std::function<void(int rank)>& action) {
  std::atomic<int> count = 0;
  fsdp::run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
    try {
      fsdp::run_agreed(world, [&] { action(world.rank()); });
    } catch (const E& error) {
      if (error.what() == text) ++count;
    }
  });
  return count;
}

}  // namespace

TEST_SUITE("mpi/agree") {
  TEST_CASE("any and every rank") {
    fsdp::run_thread_ranks(3, 3, [](ProcessGroup& world) {
      CHECK(fsdp::any_rank(world, world.rank() == 2));
      CHECK_FALSE(fsdp::any_rank(world, false));
      CHECK(fsdp::every_rank(world, true));
      CHECK_FALSE(fsdp::every_rank(world, world.rank() != 1));
    });
  }

  TEST_CASE("the first rank with a problem decides the message") {
    fsdp::run_thread_ranks(4, 4, [](ProcessGroup& world) {
      const auto problem =
          fsdp::first_problem(world, world.rank() % 2 == 1 ? "odd " + std::to_string(world.rank()) : "");
      REQUIRE(problem.has_value());
      CHECK(problem->rank == 1);
      CHECK(problem->text == "odd 1");
      CHECK_FALSE(fsdp::first_problem(world, "").has_value());
    });
  }

  TEST_CASE("the first trait that differs names both ranks and what they have, on every rank") {
    std::atomic<int> refused = 0;
    fsdp::run_thread_ranks(4, 4, [&](ProcessGroup& world) {
      fsdp::require_equal_ranks(world, {{"their program", "1.0"}, {"their device", "a GPU"}});
      const bool is_other = world.rank() >= 2;
      try {
        fsdp::require_equal_ranks(world, {{"their program", "1.0"},
                                          {"their device", is_other ? "the CPU" : "a GPU"},
                                          {"the model", world.rank() == 1 ? "a" : "b"}});
      } catch (const fsdp::RequestError& error) {
        const std::string text = error.what();
        const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
        if (has("their device: rank 0 (") && has("has a GPU, rank 2 (") && has("has the CPU (so does 1 other)"))
          ++refused;
      }
    });
    CHECK(refused == 4);
  }

  TEST_CASE("an error keeps its advice on all ranks") {
    const std::string subject = "a 1 b\n";
    const fsdp::Advice advice(static_cast<fsdp::Remedy>(7), subject);
    std::atomic<int> kept = 0;
    fsdp::run_thread_ranks(3, 3, [&](ProcessGroup& world) {
      try {
        fsdp::run_agreed(world, [&] {
          if (world.rank() == 1) throw fsdp::RequestError("2 c", advice);
        });
      } catch (const fsdp::RequestError& error) {
        if (error.what() == std::string("2 c") && error.advice().remedy == advice.remedy &&
            error.advice().subject == subject) {
          ++kept;
        }
      }
    });
    CHECK(kept == 3);
  }

  TEST_CASE("an error keeps its class on all ranks") {
    CHECK(ranks_that_throw<fsdp::UsageError>(3, "--x", [](int rank) {
            if (rank == 2) throw fsdp::UsageError("--x");
          }) == 3);
    CHECK(ranks_that_throw<fsdp::MissingInput>(2, "gone", [](int) { throw fsdp::MissingInput("gone"); }) == 2);
    CHECK(ranks_that_throw<fsdp::RuntimeFailure>(2, "odd", [](int rank) {
            if (rank == 0) throw std::runtime_error("odd");
          }) == 2);
  }

  TEST_CASE("a plain error keeps its code on all ranks") {
    fsdp::run_thread_ranks(2, 2, [](ProcessGroup& world) {
      auto code = fsdp::ExitCode::ok;
      try {
        fsdp::run_agreed(world, [&] {
          if (world.rank() == 1) throw fsdp::Error(fsdp::ExitCode::stopped_early, "early");
        });
      } catch (const fsdp::Error& error) {
        code = error.code();
        CHECK(error.what() == std::string("early"));
      }
      CHECK(code == fsdp::ExitCode::stopped_early);
    });
  }

  TEST_CASE("Stopped is thrown only if no rank has an error") {
    CHECK(ranks_that_throw<fsdp::IoError>(3, "full", [](int rank) {
            if (rank == 0) throw fsdp::Stopped();
            if (rank == 2) throw fsdp::IoError("full");
          }) == 3);
    CHECK(ranks_that_throw<fsdp::Stopped>(2, "later", [](int rank) {
            if (rank == 1) throw fsdp::Stopped("later");
          }) == 2);
  }

  TEST_CASE("rank 0 works, and all ranks get its text or its error") {
    fsdp::run_thread_ranks(3, 3, [](ProcessGroup& world) {
      std::atomic<int> calls = 0;
      CHECK(fsdp::text_of_root(world, [&] {
              ++calls;
              return std::string("found");
            }) == "found");
      CHECK(calls == (world.rank() == 0 ? 1 : 0));
      CHECK_THROWS_AS(fsdp::text_of_root(world, []() -> std::string { throw fsdp::IoError("no"); }), fsdp::IoError);
    });
  }
}
