#include "lib/hub/content_hash.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;

namespace {
std::string hash(HashKind kind, std::string_view text, std::size_t piece) {
  ContentHash hash(kind, text.size());
  for (std::size_t i = 0; i < text.size(); i += piece) hash.update(test::as_bytes(text.substr(i, piece)));
  return hash.finish();
}
}  // namespace

TEST_SUITE("hub/content_hash") {
  TEST_CASE("ContentHash: known values, in one piece and in several") {
    for (const std::size_t piece : {1u, 2u, 100u}) {
      // FIPS 180-2, and `git hash-object` of the same text.
      CHECK(hash(HashKind::sha256, "abc", piece) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
      CHECK(hash(HashKind::git_sha1, "abc", piece) == "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f");
      CHECK(hash(HashKind::sha256, "", piece) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
      CHECK(hash(HashKind::git_sha1, "", piece) == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    }
  }

  TEST_CASE("hash_file: hashes a file longer than its buffer; can be stopped") {
    const test::TempDir directory;
    const auto bytes = test::random_bytes((2u << 20) + 3, 1);
    auto file = File::create(directory / "file");
    file.write(bytes);
    file.close();
    ContentHash whole(HashKind::sha256, bytes.size());
    whole.update(bytes);
    CHECK(hash_file(directory / "file", HashKind::sha256) == whole.finish());
    CHECK(hash_file(directory / "file", HashKind::sha256, [] { return true; }).empty());
    CHECK_THROWS_AS(hash_file(directory / "none", HashKind::sha256), MissingInput);
  }

  TEST_CASE("hash_file: a pointer of Git LFS and a link have the hash of their bytes") {
    test::TempDir directory;
    test::write_file(directory / "pointer", "version https://git-lfs.github.com/spec/v1\n");
    test::write_file(directory / "other", "version https://git-lfs.github.com/spec/v2\n");
    std::filesystem::create_symlink("pointer", directory / "link");
    const auto hash = hash_file(directory / "pointer", HashKind::sha256);
    CHECK(hash_file(directory / "link", HashKind::sha256) == hash);
    CHECK(hash_file(directory / "other", HashKind::sha256) != hash);
  }

  TEST_CASE("hash_kind: decided by length and digits") {
    CHECK(hash_kind(std::string(64, 'a')) == HashKind::sha256);
    CHECK(hash_kind(std::string(40, '0')) == HashKind::git_sha1);
    CHECK(is_commit_id(std::string(40, 'f')));
    CHECK_FALSE(is_commit_id("main"));
    for (const auto& wrong :
         {std::string(64, 'A'), std::string(39, '0'), std::string(), std::string("../../etc/passwd")}) {
      CHECK_THROWS_AS(hash_kind(wrong), FormatError);
    }
  }
}
