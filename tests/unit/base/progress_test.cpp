#include "lib/base/messages/progress.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

/// Returns what is written to stderr meanwhile, which is a log and no terminal.
template <class Work>
std::string logged(Work work) {
  const test::TempDir dir;
  const auto file = dir.path() / "log";
  const int before = ::dup(STDERR_FILENO);
  const int log = ::open(file.c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(log, STDERR_FILENO);
  work();
  ::dup2(before, STDERR_FILENO);
  ::close(log);
  ::close(before);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

TEST_SUITE("base/progress") {
  const Logger log(0, LogLevel::info);

  TEST_CASE("the first step, the last one and every third have a line, with the time left by a moving average") {
    CHECK(logged([] {
            Progress progress(log, true, 3);
            for (int step = 1; step <= 5; ++step)
              progress.step(step, 5, "step " + std::to_string(step), step == 1 ? 10 : 20);
          }) == "step 1   eta 0:40\nstep 3   eta 0:24\nstep 5   eta 0:00\n");
  }

  TEST_CASE("a line is shown when one is due, and none where nothing is to be shown") {
    CHECK(logged([] { Progress(log, true, 0).show([] { return std::string("now"); }); }) == "now\n");
    CHECK(logged([] { Progress(log, true, 100).show([] { return std::string("too early"); }); }).empty());
    CHECK(logged([] {
            Progress none(log, false, 0);
            none.show([] { return std::string("not here"); });
            none.keep("nor here");
            none.step(1, 1, "nor here", 1);
          }).empty());
  }

  TEST_CASE("a share of everything is shown with the time left, once it is known and until it is done") {
    CHECK(logged([] {
            Progress progress(log, true, 0);
            for (const double share : {0.0, 0.5, 1.0}) progress.show_share("loss", share, "1 of 2");
          }) == "loss   50 %   1 of 2   eta 0:00\n");
  }
}
