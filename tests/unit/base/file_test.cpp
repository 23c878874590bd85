#include "lib/base/file.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "lib/base/error.hpp"

namespace {
struct TempDir {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("fsdp-file-test-" + std::to_string(::getpid()));
  TempDir() { std::filesystem::create_directories(path); }
  ~TempDir() { std::filesystem::remove_all(path); }
};
}  // namespace

TEST_SUITE("base/file") {
  TEST_CASE("replace_file: readers find the new text and no temporary is left") {
    TempDir dir;
    fsdp::replace_file(dir.path / "a.json", "old");
    fsdp::replace_file(dir.path / "a.json", "new");

    CHECK(fsdp::read_text_file(dir.path / "a.json") == "new");
    CHECK(std::distance(std::filesystem::directory_iterator(dir.path), {}) == 1);
  }

  TEST_CASE("replace_symlink: replaces an existing link") {
    TempDir dir;
    fsdp::replace_symlink("one", dir.path / "latest");
    fsdp::replace_symlink("two", dir.path / "latest");

    CHECK(std::filesystem::read_symlink(dir.path / "latest") == "two");
  }

  TEST_CASE("read_at: past the end names the file and the byte") {
    TempDir dir;
    fsdp::replace_file(dir.path / "short", "abc");
    const auto file = fsdp::File::open_read(dir.path / "short");
    std::array<std::byte, 8> out{};

    CHECK_THROWS_WITH_AS(file.read_at(1, out), doctest::Contains("at byte 3: the file ends here"), fsdp::FormatError);
  }

  TEST_CASE("open_read: a missing file is an I/O error that names it") {
    CHECK_THROWS_WITH_AS(fsdp::File::open_read("/nonexistent/x"), doctest::Contains("/nonexistent/x"), fsdp::IoError);
  }
}
