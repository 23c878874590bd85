#include "lib/base/files/shared_write.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

/// No file of this process grows beyond some bytes while an object lives, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t most_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{most_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_SUITE("base/shared_write") {
  TEST_CASE("a text that cannot be written whole leaves nothing behind, and what was there") {
    const test::TempDir dir;
    const auto there = dir.path() / "there", fresh = dir.path() / "new";
    publish_text(there, "before");
    const std::string text(1000, 'x');
    {
      const SmallFiles full(10);
      CHECK_THROWS_AS(publish_text(there, text), IoError);
      CHECK_THROWS_AS(create_exclusively(fresh, text), IoError);
    }
    CHECK(std::filesystem::file_size(there) == 6);
    CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 1);
    CHECK(create_exclusively(fresh, text));
    CHECK_FALSE(create_exclusively(fresh, text));
    CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 2);
  }
}
