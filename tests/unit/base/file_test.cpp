#include "lib/base/files/file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <span>
#include <string>

#include "lib/base/types/error.hpp"

namespace {
struct TempDir {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("fsdp-file-test-" + std::to_string(::getpid()));
  TempDir() { std::filesystem::create_directories(path); }
  ~TempDir() { std::filesystem::remove_all(path); }
};
}  // namespace

TEST_SUITE("base/file") {
  TEST_CASE("replace_file: readers see the new text and no temporary file is left") {
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

  TEST_CASE("read_at: reading past the end names the file and the byte") {
    TempDir dir;
    fsdp::replace_file(dir.path / "short", "abc");
    const auto file = fsdp::File::open_read(dir.path / "short");
    std::array<std::byte, 8> out{};

    CHECK_THROWS_WITH_AS(file.read_at(1, out), doctest::Contains("at byte 3: the file ends here"), fsdp::FormatError);
  }

  TEST_CASE("open_read: never waits for a pipe, and opens regular files only") {
    TempDir dir;
    REQUIRE(::mkfifo((dir.path / "pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(fsdp::File::open_read(dir.path / "pipe"), doctest::Contains("is a pipe"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::File::open_read(dir.path), doctest::Contains("is a directory"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::File::open_read("/dev/zero"), doctest::Contains("is a device"), fsdp::FormatError);
  }

  TEST_CASE("open_read: a missing file is an I/O error that names it") {
    CHECK_THROWS_WITH_AS(fsdp::File::open_read("/nonexistent/x"), doctest::Contains("/nonexistent/x"), fsdp::IoError);
  }

  TEST_CASE("open_read: a pointer of Git LFS is not the file") {
    TempDir dir;
    const std::string pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 9\n";
    fsdp::replace_file(dir.path / "model.safetensors", pointer);
    CHECK_THROWS_WITH_AS(fsdp::File::open_read(dir.path / "model.safetensors"),
                         doctest::Contains("model.safetensors: is a pointer of Git LFS"), fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::read_text_file(dir.path / "model.safetensors"), fsdp::FormatError);
    fsdp::replace_file(dir.path / "about.txt", "On Git LFS: a pointer begins with\n" + pointer);
    CHECK_NOTHROW(fsdp::File::open_read(dir.path / "about.txt"));
    fsdp::replace_file(dir.path / "long.txt", pointer + std::string(1024, 'x'));
    CHECK_NOTHROW(fsdp::File::open_read(dir.path / "long.txt"));
  }

  TEST_CASE("private files: own regular files with one name are opened or created, all others are refused and stay") {
    TempDir dir;
    const auto path = dir.path / "data", other = dir.path / "other";
    const auto refused = [&](const char* what) {
      for (const auto open : {fsdp::File::open_update_private, fsdp::File::open_append_private}) {
        CHECK_THROWS_WITH_AS(open(path), doctest::Contains(what), fsdp::IoError);
      }
      CHECK_THROWS_AS(fsdp::File::create_new(path), fsdp::IoError);
      std::filesystem::remove(path);
    };
    fsdp::File::create_new(path).write("0123");
    auto update = fsdp::File::open_update_private(path);
    update.write_at(1, std::as_bytes(std::span("ab", 2)));
    fsdp::File::open_append_private(path).write("45");
    CHECK(fsdp::read_text(fsdp::File::open_read_nofollow(path)) == "0ab345");
    CHECK_THROWS_AS(fsdp::File::create_new(path), fsdp::IoError);
    std::filesystem::remove(path);

    fsdp::replace_file(other, "mine");
    std::filesystem::create_symlink(other, path);
    CHECK_THROWS_WITH_AS(fsdp::File::open_read_nofollow(path), doctest::Contains("symbolic link"), fsdp::IoError);
    refused("data: is a symbolic link, expected a regular file of this user alone: remove it");
    std::filesystem::create_symlink(dir.path / "nowhere", path);
    refused("is a symbolic link");
    CHECK_FALSE(std::filesystem::exists(dir.path / "nowhere"));
    std::filesystem::create_hard_link(other, path);
    refused("is a file that has 2 names");
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(fsdp::File::open_read_nofollow(path), doctest::Contains("no regular file"), fsdp::IoError);
    refused("is no regular file");
    if (::geteuid() == 0) {
      fsdp::replace_file(path, "theirs");
      REQUIRE(::chown(path.c_str(), 54321, 54321) == 0);
      CHECK(fsdp::read_text(fsdp::File::open_read_nofollow(path)) == "theirs");
      refused("is a file of user 54321");
    }
    CHECK(fsdp::read_text_file(other) == "mine");
  }
}
