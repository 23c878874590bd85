#include "lib/hub/snapshot_store.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"
#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;
namespace fs = std::filesystem;

namespace {
const std::string kCommit(40, 'c');
RemoteFile file(const std::string& path, std::uint64_t size) {
  return {path, size, std::string(40, 'a'), std::nullopt, std::nullopt};
}
}  // namespace

TEST_SUITE("hub/snapshot_store") {
  TEST_CASE("SnapshotStore: a verified mark holds only for the unchanged file") {
    const test::TempDir directory;
    for (const bool local : {false, true}) {
      const auto store = local ? SnapshotStore::in_folder(directory / "plain")
                               : SnapshotStore::in_cache(directory.path(), {RepoType::model, "o/n"}, true);
      const auto one = file("d/x", 5);
      CHECK_FALSE(store.is_verified(one));
      test::write_file(directory / "data", "hello");
      store.publish(directory / "data", one);
      CHECK_FALSE(store.is_verified(one));
      store.set_verified(one);
      CHECK(store.is_verified(one));
      auto other_hash = one;
      other_hash.blob_id = std::string(40, 'b');
      if (local) CHECK_FALSE(store.is_verified(other_hash));
      fs::last_write_time(store.content(one), fs::file_time_type::clock::now() + std::chrono::seconds(3));
      CHECK_FALSE(store.is_verified(one));
      store.set_verified(one);
      store.forget_verified(one);
      CHECK_FALSE(store.is_verified(one));
    }
  }

  TEST_CASE("SnapshotStore: links replace links, including wrong and dangling ones") {
    const test::TempDir directory;
    const auto store = SnapshotStore::in_cache(directory.path(), {RepoType::dataset, "o/n"}, true);
    const auto one = file("a/b/x", 5);
    const auto place = store.snapshot(kCommit) / "a/b/x";
    test::write_file(store.content(one), "hello");
    fs::create_directories(place.parent_path());
    fs::create_symlink("nowhere", place);
    for (int i = 0; i < 2; ++i) {
      store.add_to_snapshot(kCommit, one, store.content(one));
      CHECK(fs::read_symlink(place) == "../../../../blobs/" + one.hash());
      CHECK(read_text_file(place) == "hello");
    }
    CHECK(store.snapshot(kCommit) == directory.path() / "datasets--o--n" / "snapshots" / kCommit);
  }

  TEST_CASE("SnapshotStore: references and listings") {
    const test::TempDir directory;
    const auto store = SnapshotStore::in_cache(directory.path(), {RepoType::model, "o/n"}, true);
    CHECK_FALSE(store.read_ref("main"));
    CHECK(store.read_ref(kCommit) == kCommit);
    store.write_ref("refs/pr/5", kCommit);
    CHECK(store.read_ref("refs/pr/5") == kCommit);
    test::write_file(store.root() / "refs" / "bad", "../../etc");
    CHECK_FALSE(store.read_ref("bad"));
    CHECK_FALSE(store.read_tree(kCommit));
    store.write_tree(kCommit, {file("a", 1)});
    CHECK(store.read_tree(kCommit)->at(0).path == "a");
    test::write_file(store.root() / "trees" / (kCommit + ".json"), "{");
    CHECK_FALSE(store.read_tree(kCommit));
  }

  TEST_CASE("manifest: round trip, union, errors that name a damaged file") {
    const test::TempDir directory;
    const auto path = directory / "m" / "x.json";
    CHECK_FALSE(read_manifest(path));
    SnapshotManifest manifest;
    manifest.repo = RepoId::parse(RepoType::dataset, "o/n");
    manifest.commit = kCommit;
    manifest.add({file("b", 1), file("a", 2)});
    manifest.add({file("b", 3)});
    write_manifest(path, manifest);
    const auto back = read_manifest(path);
    REQUIRE(back);
    REQUIRE(back->files.size() == 2);
    CHECK(back->files[0].path == "a");
    CHECK(back->files[1].size_bytes == 3);
    CHECK(back->repo.folder() == "datasets--o--n");
    test::write_file(path, "{\"repo\": 1}");
    CHECK_THROWS_WITH_AS(read_manifest(path), doctest::Contains(path.c_str()), FormatError);
    test::write_file(path, R"({"type": "model", "repo": "../n"})");  // a name that users cannot give either
    CHECK_THROWS_WITH_AS(read_manifest(path), doctest::Contains(path.c_str()), FormatError);
  }

  TEST_CASE("publish_text: readers see whole texts while several threads write; create_exclusively: one of many wins") {
    const test::TempDir directory;
    const auto path = directory / "d" / "text";
    const std::string a(50000, 'a'), b(60000, 'b');
    publish_text(path, a);
    std::atomic<int> winners{0};
    {
      std::vector<std::jthread> threads;
      for (const auto* text : {&a, &b}) {
        threads.emplace_back([&, text] {
          for (int i = 0; i < 50; ++i) publish_text(path, *text);
        });
      }
      for (int i = 0; i < 50; ++i) {
        const auto seen = read_text_file(path);
        REQUIRE((seen == a || seen == b));
      }
      for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&] { winners += create_exclusively(directory / "one", "mine"); });
      }
    }
    CHECK(winners == 1);
    CHECK_FALSE(create_exclusively(directory / "none" / "x", "folder is not there"));
    CHECK(std::distance(fs::directory_iterator(directory / "d"), fs::directory_iterator()) == 1);
  }
}
