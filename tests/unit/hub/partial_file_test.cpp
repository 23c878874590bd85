#include "lib/hub/partial_file.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "lib/base/types/error.hpp"
#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;
namespace fs = std::filesystem;

namespace {

struct Content {
  explicit Content(std::size_t size) : bytes(test::random_bytes(size, 5)) {
    ContentHash whole(HashKind::sha256, size);
    whole.update(bytes);
    hash = whole.finish();
  }
  std::span<const std::byte> part(std::uint64_t begin, std::uint64_t end) const {
    return std::span(bytes).subspan(begin, end - begin);
  }
  test::Bytes bytes;
  std::string hash;
};

/// Writes the ranges as owner `generation` of the folder, whose claim then has the text `owner`.
void leave(const fs::path& folder, std::uint64_t generation, const Content& content, std::vector<ByteRange> ranges,
           const std::string& owner) {
  PartialFile file(folder, generation, content.hash, content.bytes.size(), {});
  for (const auto& range : ranges) file.store(range.begin, content.part(range.begin, range.end));
  test::write_file(folder / ("claim." + std::to_string(generation)), owner);
}

PartialFile reopen(const fs::path& folder, std::uint64_t generation, const Content& content) {
  return PartialFile(folder, generation, content.hash, content.bytes.size(), {});
}

}  // namespace

TEST_SUITE("hub/partial_file") {
  TEST_CASE("PartialFile: pieces stored in any order by several threads give the right hash") {
    for (const std::size_t size : {0u, 1u, 4095u, 100000u}) {
      const test::TempDir directory;
      const Content content(size);
      auto file = reopen(directory.path(), 1, content);
      {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; ++i) {
          threads.emplace_back([&] {
            while (const auto range = file.take(1000)) {
              const auto middle = (range->begin + range->end) / 2;
              file.store(middle, content.part(middle, range->end));
              file.store(range->begin, content.part(range->begin, middle));
              file.give_back({*range});
            }
          });
        }
      }
      CHECK(file.complete());
      CHECK(file.finish() == content.hash);
      CHECK(test::read_file(file.data_path()) == content.bytes);
    }
  }

  TEST_CASE("PartialFile: hands out every byte once, all of it on request, and takes bytes back") {
    const test::TempDir directory;
    const Content content(2500);
    auto file = reopen(directory.path(), 1, content);
    file.store(100, content.part(100, 200));
    CHECK(file.take(1000) == ByteRange{0, 100});
    CHECK(file.take(1000) == ByteRange{200, 1000});
    CHECK(file.take_all().empty());
    CHECK(file.take(1000) == ByteRange{1000, 2000});
    CHECK(file.take(1000) == ByteRange{2000, 2500});
    CHECK_FALSE(file.take(1000));
    file.give_back({{200, 1000}});
    CHECK(file.take(1000) == ByteRange{200, 1000});
    file.give_back({{0, 2500}});
    CHECK(file.take_all() == std::vector<ByteRange>{{0, 100}, {200, 2500}});
  }

  TEST_CASE("PartialFile: continues the data of a dead owner without copying it") {
    const test::TempDir directory;
    const Content content(50000);
    leave(directory.path(), 1, content, {{0, 20000}, {30000, 40000}}, "released");
    leave(directory.path(), 2, content, {}, test::ended().to_json());
    const auto inode = [&](const char* part) {
      fs::path path = directory / part / "data";
      return fs::exists(path) ? fs::hard_link_count(path) : 0;
    };
    CHECK(inode("part.2") == 1);
    auto file = reopen(directory.path(), 3, content);
    CHECK(file.adopted_bytes() == 30000);
    CHECK_FALSE(fs::exists(directory / "part.1"));
    CHECK_FALSE(fs::exists(directory / "part.2"));
    CHECK(estimate_partial_bytes(directory.path(), content.hash, 50000) == 30000);
    for (const auto& range : file.take_all()) file.store(range.begin, content.part(range.begin, range.end));
    CHECK(file.finish() == content.hash);
  }

  TEST_CASE("PartialFile: copies the data of an owner that may still live, whose later writes have no effect") {
    const test::TempDir directory;
    const Content content(50000);
    leave(directory.path(), 1, content, {{0, 20000}}, test::elsewhere().to_json());
    auto zombie = File::open_update_private(directory / "part.1" / "data");
    auto file = reopen(directory.path(), 2, content);
    CHECK(file.adopted_bytes() == 20000);
    zombie.write_at(0, test::random_bytes(20000, 99));
    file.store(20000, content.part(20000, 50000));
    CHECK(file.finish() == content.hash);
    CHECK(test::read_file(file.data_path()) == content.bytes);
  }

  TEST_CASE("PartialFile: combines the data of several owners") {
    const test::TempDir directory;
    const Content content(50000);
    leave(directory.path(), 1, content, {{0, 9000}, {20000, 30000}}, test::elsewhere().to_json());
    // Write owner 2's part while owner 1's is hidden, so that owner 2 does not adopt it.
    fs::rename(directory / "part.1", directory / "kept");
    leave(directory.path(), 2, content, {{5000, 25000}}, "released");
    fs::rename(directory / "kept", directory / "part.1");
    CHECK(estimate_partial_bytes(directory.path(), content.hash, 50000) == 30000);
    auto file = reopen(directory.path(), 3, content);
    CHECK(file.adopted_bytes() == 30000);
    file.store(30000, content.part(30000, 50000));
    CHECK(file.finish() == content.hash);
  }

  TEST_CASE("PartialFile: damaged data or journal costs bytes, never correctness") {
    const Content content(20000);
    std::mt19937 random(3);
    for (int round = 0; round < 60; ++round) {
      const test::TempDir directory;
      std::vector<ByteRange> ranges;
      for (std::uint64_t at = 0; at < 15000; at += 1000) ranges.push_back({at, at + 1000});
      std::shuffle(ranges.begin(), ranges.end(), random);
      leave(directory.path(), 1, content, ranges, "released");
      for (const auto* name : {"data", "journal"}) {
        const auto path = directory / "part.1" / name;
        auto bytes = test::read_file(path);
        if (random() % 3 == 0) bytes.resize(random() % bytes.size());
        for (auto flips = random() % 4; flips > 0 && !bytes.empty(); --flips) {
          bytes[random() % bytes.size()] = static_cast<std::byte>(random());
        }
        auto file = File::create(path);
        file.write(bytes);
        file.close();
      }
      {
        auto file = reopen(directory.path(), 2, content);
        CHECK(file.adopted_bytes() <= 15000);
        const auto range = file.take(700);
        REQUIRE(range);
        file.store(range->begin, content.part(range->begin, range->end));
      }
      test::write_file(directory / "claim.2", "released");
      auto file = reopen(directory.path(), 3, content);
      for (const auto& range : file.take_all()) file.store(range.begin, content.part(range.begin, range.end));
      REQUIRE(file.finish() == content.hash);
      REQUIRE(test::read_file(file.data_path()) == content.bytes);
    }
  }

  TEST_CASE("PartialFile: planted links in place of a part are neither followed nor kept") {
    const Content content(20000);
    for (const bool hard : {false, true}) {
      for (const std::string name : {"data", "journal"}) {
        for (const std::string part : {"part.1", "part.2"}) {  // the part to adopt, and this process's own
          const test::TempDir directory;
          test::write_file(directory / "valuable", "keep this");
          leave(directory.path(), 1, content, {{0, 9000}}, "released");
          fs::create_directory(directory / "part.2");
          fs::remove(directory / part / name);
          if (hard) fs::create_hard_link(directory / "valuable", directory / part / name);
          if (!hard) fs::create_symlink(directory / "valuable", directory / part / name);
          auto file = reopen(directory.path(), 2, content);
          for (const auto& range : file.take_all()) file.store(range.begin, content.part(range.begin, range.end));
          CHECK(file.finish() == content.hash);
          CHECK(fs::is_regular_file(fs::symlink_status(file.data_path())));
          CHECK(fs::hard_link_count(file.data_path()) == 1);
          CHECK(read_text_file(directory / "valuable") == "keep this");
        }
      }
    }
  }

  TEST_CASE("PartialFile: a file that was replaced or has another hard link is not published") {
    const Content content(3000);
    for (const bool replaced : {false, true}) {
      const test::TempDir directory;
      auto file = reopen(directory.path(), 1, content);
      file.store(0, content.part(0, 3000));
      if (replaced) {
        fs::remove(file.data_path());
        test::write_file(file.data_path(), "other");
      } else {
        fs::create_hard_link(file.data_path(), directory / "mine");
      }
      CHECK_THROWS_WITH_AS(file.finish(), doctest::Contains("replaced or linked"), IoError);
    }
  }

  TEST_CASE("PartialFile: starts again after wrong bytes, also in the next process") {
    const test::TempDir directory;
    const Content content(3000);
    auto file = reopen(directory.path(), 1, content);
    file.store(0, test::random_bytes(3000, 8));
    CHECK(file.finish() != content.hash);
    file.start_over();
    CHECK(file.present_bytes() == 0);
    CHECK(estimate_partial_bytes(directory.path(), content.hash, 3000) == 0);
    file.store(0, content.part(0, 3000));
    CHECK(file.finish() == content.hash);
  }

  TEST_CASE("read_journal: ranges outside of the file, too long or for other content are ignored") {
    const test::TempDir directory;
    const auto path = directory / "journal";
    const auto head = "fsdp-partial 1 " + std::string(64, 'a') + " 100\n";
    const auto count = [&](const std::string& text) {
      test::write_file(path, text);
      return read_journal(path, std::string(64, 'a'), 100).size();
    };
    CHECK(count(head + "0 100 0000000a\n") == 1);
    for (const std::string line :
         {"0 101 0000000a\n", "5 5 0000000a\n", "6 5 0000000a\n", "-1 5 0000000a\n", "0 5 a\n", "0 5 0000000a",
          "0 18446744073709551616 0000000a\n", "0 5 0000000a extra\n", " 0 5 0000000a\n", "0  5 0000000a\n", "\n"}) {
      CAPTURE(line);
      CHECK(count(head + line) == 0);
      if (line.back() == '\n') CHECK(count(head + line + "1 2 00000000\n") == 1);
    }
    CHECK(count("fsdp-partial 2 " + head.substr(15) + "0 100 0000000a\n") == 0);
    CHECK(read_journal(path, std::string(64, 'b'), 100).empty());
    CHECK(read_journal(directory / "none", std::string(64, 'a'), 100).empty());
    const auto large = "fsdp-partial 1 h 1000000000000\n0 67108865 00000000\n0 67108864 00000000\n";
    test::write_file(path, large);
    CHECK(read_journal(path, "h", 1000000000000).size() == 1);
  }
}
