// doctest under MPI: every rank runs every test case. The exit code is the largest of all ranks. Rank 0 prints how many
// other ranks had failures, and these ranks print their output. A rank that leaves a test case early (REQUIRE, an
// exception) aborts the job, because the other ranks would wait for it in their next collective.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "lib/ranks/mpi_environment.hpp"
#include "tests/support/mpi_test.hpp"

namespace {

struct Session {
  fsdp::ProcessGroup* world = nullptr;
  std::ostringstream output;  // output of ranks other than 0, shown only after a failure
};

Session& session() {
  static Session only;
  return only;
}

/// Prints this rank's text in one piece.
void show(const std::string& own) {
  std::cerr << "[rank " + std::to_string(session().world->rank()) + "]\n" + own + "\n" << std::flush;
}

struct EndJobWhenLeft final : doctest::IReporter {
  explicit EndJobWhenLeft(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& data) override { name_ = data.m_name; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException& exception) override {
    leave(exception.error_string.c_str());
  }
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& data) override {
    if (data.m_failed && (data.m_at & doctest::assertType::is_require) != 0) leave(data.m_expr);
  }
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  void leave(const char* why) {
    show(session().output.str() + "left the test case '" + name_ + "': " + why);
    fsdp::MpiEnvironment::abort(1);
  }
  std::string name_;
};

REGISTER_LISTENER("end_job_when_left", 1, EndJobWhenLeft);

}  // namespace

fsdp::ProcessGroup& fsdp::test::mpi_world() { return *session().world; }

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  fsdp::MpiEnvironment environment({30s, 30s});
  const auto world = environment.world();
  session().world = world.get();
  doctest::Context context(argc, argv);
  if (world->rank() != 0) context.setCout(&session().output);
  const int mine = context.run();
  if (world->rank() != 0 && mine != 0) show(session().output.str());
  const int worst = static_cast<int>(world->all_reduce(mine, fsdp::Reduce::max));
  const auto failed =
      static_cast<int>(world->all_reduce(mine != 0 && world->rank() != 0 ? 1.0 : 0.0, fsdp::Reduce::sum));
  if (world->rank() == 0)
    std::cout << world->size() << " ranks, failures on " << failed << " of the other " << world->size() - 1
              << std::endl;
  environment.set_exit(worst, fsdp::kExitPatience);
  return worst;
}
