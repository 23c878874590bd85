#include "lib/training/record/metrics.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/temp_files.hpp"

using namespace fsdp;
using fsdp::test::TempDir;

namespace {

/// No file can grow beyond `bytes` while it lives, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit limit { bytes, before_.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  struct rlimit before_ {};
  void (*handler_)(int);
};

std::string line(int step) { return nlohmann::json{{"step", step}}.dump() + "\n"; }

}  // namespace

TEST_SUITE("train/metrics") {
  TEST_CASE("a run that goes on keeps the lines up to its step, whole ones only") {
    const TempDir folder;
    const auto file = folder.path() / "metrics.jsonl";
    const Logger quiet(0, LogLevel::error);
    replace_file(file, line(1) + line(2) + line(3) + "{\"step\": 4, \"lo");
    MetricsFile(file, 2, quiet).add({{"step", 7}});
    CHECK(read_text_file(file) == line(1) + line(2) + line(7));
    MetricsFile(file, -1, quiet).add({{"step", 1}});
    CHECK(read_text_file(file) == line(1));
  }

  TEST_CASE("a run that goes on does not wait for a pipe in place of its lines") {
    const TempDir folder;
    const auto file = folder.path() / "metrics.jsonl";
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    const Logger quiet(0, LogLevel::error);
    CHECK_NOTHROW(MetricsFile(file, 2, quiet).add({{"step", 3}}));
    CHECK(std::filesystem::is_fifo(file));
  }

  TEST_CASE("of a step that is going to be validated again its validation goes, too") {
    const TempDir folder;
    const auto file = folder.path() / "metrics.jsonl";
    const Logger quiet(0, LogLevel::error);
    const auto told = [](int step, const char* name) {
      return nlohmann::json{{"step", step}, {name, 0.5}, {"eval_seconds", 1.0}}.dump() + "\n";
    };
    const auto eval = [&](int step) { return told(step, "val_loss") + told(step, "chess_legal"); };
    const auto before = line(1) + eval(1) + line(2) + eval(2);
    replace_file(file, before + line(3));
    { const MetricsFile kept(file, 2, quiet); }
    CHECK(read_text_file(file) == before);
    { const MetricsFile cut(file, 2, quiet, true); }
    CHECK(read_text_file(file) == line(1) + eval(1) + line(2));
  }

  TEST_CASE("without room lines wait in memory, and no torn line stays in the file") {
    const TempDir folder;
    const auto file = folder.path() / "metrics.jsonl";
    const Logger quiet(0, LogLevel::error);
    std::string all;
    MetricsFile metrics(file, -1, quiet);
    {
      const FileSizeLimit limit(line(1).size() * 3 / 2);  // the second line is torn by it
      for (int step = 1; step <= 5; ++step) {
        metrics.add({{"step", step}});
        all += line(step);
        CHECK(read_text_file(file) == line(1));
      }
    }
    metrics.add({{"step", 6}});
    CHECK(read_text_file(file) == all + line(6));
  }

  TEST_CASE("a file that was removed is made anew, and one that stands in its place is added to") {
    const TempDir folder;
    const auto file = folder.path() / "metrics.jsonl";
    const Logger quiet(0, LogLevel::error);
    MetricsFile metrics(file, -1, quiet);
    metrics.add({{"step", 1}});
    std::filesystem::remove(file);
    metrics.add({{"step", 2}});
    metrics.add({{"step", 3}});
    CHECK(read_text_file(file) == line(2) + line(3));
    replace_file(file, "of the user\n");
    metrics.add({{"step", 4}});
    CHECK(read_text_file(file) == "of the user\n" + line(4));
    std::filesystem::rename(folder.path(), folder.path().string() + "-gone");
    metrics.add({{"step", 5}});
    metrics.add({{"step", 6}});
    std::filesystem::rename(folder.path().string() + "-gone", folder.path());
    metrics.add({{"step", 7}});
    CHECK(read_text_file(file) == "of the user\n" + line(4) + line(5) + line(6) + line(7));
  }

  TEST_CASE("a file that cannot even be opened is made when it can be") {
    const TempDir folder;
    const auto file = folder.path() / "absent" / "metrics.jsonl";
    const Logger quiet(0, LogLevel::error);
    MetricsFile metrics(file, -1, quiet);
    metrics.add({{"step", 1}});
    std::filesystem::create_directories(file.parent_path());
    metrics.add({{"step", 2}});
    CHECK(read_text_file(file) == line(1) + line(2));
  }
}
