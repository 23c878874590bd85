#include "lib/base/files/output_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

namespace {
namespace fs = std::filesystem;

constexpr auto kGroupReads = fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read;
}  // namespace

TEST_SUITE("base/output_file") {
  TEST_CASE("write_output: a regular file is replaced and keeps its mode; a link stays and its file is replaced") {
    const fsdp::test::TempDir dir;
    fsdp::write_output(dir.path() / "file", "old");
    fs::permissions(dir.path() / "file", kGroupReads);
    fs::create_symlink("file", dir.path() / "link");
    fs::create_hard_link(dir.path() / "file", dir.path() / "other");
    fsdp::write_output(dir.path() / "link", "new");
    CHECK(fs::is_symlink(dir.path() / "link"));
    CHECK(fsdp::read_text_file(dir.path() / "file") == "new");
    CHECK(fs::status(dir.path() / "file").permissions() == kGroupReads);
    CHECK(fsdp::read_text_file(dir.path() / "other") == "old");  // other hard links keep the old content
    fs::create_symlink("later", dir.path() / "dangling");
    fsdp::write_output(dir.path() / "dangling", "made");
    CHECK(fsdp::read_text_file(dir.path() / "later") == "made");
    CHECK_THROWS_WITH_AS(fsdp::write_output(dir.path(), "x"), doctest::Contains("is a directory"), fsdp::IoError);
    CHECK_THROWS_WITH_AS(fsdp::write_output("/nonexistent/x", ""), doctest::Contains("/nonexistent/x: cannot create"),
                         fsdp::IoError);
  }

  TEST_CASE("write_output: pipes and open files are written in place and keep their kind") {
    const fsdp::test::TempDir dir;
    const auto pipe = dir.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(fsdp::write_output(pipe, "lost"), doctest::Contains("is a pipe that nobody reads"),
                         fsdp::IoError);
    const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
    fsdp::write_output(pipe, "text");
    std::string text(16, '\0');
    text.resize(static_cast<std::size_t>(::read(reader, text.data(), text.size())));
    ::close(reader);
    CHECK(text == "text");
    CHECK(fs::is_fifo(pipe));

    auto open = fsdp::File::create(dir.path() / "log");
    open.write("first, ");
    fsdp::write_output("/dev/fd/" + std::to_string(open.fd()), "then");
    CHECK(fsdp::read_text_file(dir.path() / "log") == "first, then");
    fsdp::write_output("/dev/null", "gone");
    CHECK(fs::is_character_file("/dev/null"));
    CHECK_THROWS_WITH_AS(fsdp::write_output("/dev/full", "no room"), doctest::Contains("/dev/full: cannot write"),
                         fsdp::IoError);
    CHECK(fs::is_character_file("/dev/full"));
  }

  TEST_CASE("seekable_output: refuses files that cannot seek, follows links") {
    const fsdp::test::TempDir dir;
    const auto pipe = dir.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    fs::create_symlink(pipe, dir.path() / "link");
    for (const auto& path : {pipe, dir.path() / "link", fs::path("/dev/null"), fs::path("/dev/stdout")}) {
      CHECK_THROWS_WITH_AS(fsdp::seekable_output(path), doctest::Contains("needs a regular file"), fsdp::UsageError);
    }
    fs::create_symlink("real", dir.path() / "way");
    CHECK(fsdp::seekable_output(dir.path() / "way") == dir.path() / "real");
    CHECK(fsdp::seekable_output("x.pt") == "x.pt");
  }

  TEST_CASE("replace_file: never replaces a pipe, and keeps a file's mode") {
    const fsdp::test::TempDir dir;
    const auto pipe = dir.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(fsdp::replace_file(pipe, "x"), doctest::Contains("is no regular file"), fsdp::IoError);
    CHECK(fs::is_fifo(pipe));
    fsdp::replace_file(dir.path() / "file", "a");
    fs::permissions(dir.path() / "file", kGroupReads);
    fsdp::replace_file(dir.path() / "file", "b");
    CHECK(fs::status(dir.path() / "file").permissions() == kGroupReads);
  }

  TEST_CASE("path_below: compares the files that paths lead to, not their spelling") {
    const fsdp::test::TempDir dir;
    fs::create_directories(dir.path() / "run" / "checkpoints");
    fs::create_directory_symlink(dir.path() / "run", dir.path() / "link");
    const auto below = [](const fs::path& path, const fs::path& directory) {
      const auto way = fsdp::path_below(path, directory);
      return way ? way->string() : "elsewhere";
    };
    CHECK(below(dir.path() / "run", dir.path() / "link/") == ".");
    CHECK(below(dir.path() / "link" / "checkpoints", dir.path() / "run") == "checkpoints");
    CHECK(below(dir.path() / "run" / "checkpoints", dir.path() / "link" / "checkpoints" / "..") == "checkpoints");
    CHECK(below(dir.path() / "link" / "new" / "hf", dir.path() / "run") == "new/hf");
    CHECK(below(dir.path() / "run", dir.path() / "run" / "checkpoints") == "elsewhere");
    CHECK(below(dir.path() / "running", dir.path() / "run") == "elsewhere");
    CHECK(below(".", fs::current_path()) == ".");
    CHECK(below("x", "/") != "elsewhere");
  }
}
