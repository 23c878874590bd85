#include "lib/corpus/corpus_report.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/token_files/token_file_writer.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::CorpusReport;
using fsdp::DocumentPlace;
using fsdp::test::TempDir;
using Ids = std::vector<std::int32_t>;

TEST_SUITE("documents/corpus_report") {
  TEST_CASE("equal documents are grouped, in memory and through runs on the disk") {
    std::mt19937 random(4);
    for (const std::size_t most : {1000000, 64, 7}) {
      const TempDir dir;
      fsdp::EqualDocuments equal(dir / "output.h5", most);
      std::map<std::uint64_t, std::set<DocumentPlace>> wanted, found;
      for (std::uint64_t i = 0; i < 1000; ++i) {
        const auto hash = std::uint64_t{random() % 600} << 55 | 1;
        const DocumentPlace place{static_cast<std::uint32_t>(i % 3), i};
        equal.add(hash, place);
        wanted[hash].insert(place);
      }
      std::erase_if(wanted, [](const auto& group) { return group.second.size() < 2; });
      std::uint64_t groups = 0;
      equal.for_groups([&](std::span<const DocumentPlace> places) {
        CHECK(std::ranges::is_sorted(places));
        found[groups++] = {places.begin(), places.end()};
      });
      std::multiset<std::set<DocumentPlace>> a, b;
      for (const auto& [hash, places] : wanted) a.insert(places);
      for (const auto& [number, places] : found) b.insert(places);
      CHECK(a == b);
      CHECK(std::filesystem::is_empty(dir.path()));  // the file has no name
    }
  }

  TEST_CASE("a set of hashes") {
    std::mt19937_64 random(1);
    fsdp::SeenHashes seen;
    std::set<std::uint64_t> wanted;
    CHECK_FALSE(seen.contains(5));
    for (int i = 0; i < 20000; ++i) {
      const auto hash = random() % 15000;  // 0 too
      CHECK(seen.insert(hash) == wanted.insert(hash).second);
    }
    CHECK(seen.size() == wanted.size());
    for (std::uint64_t hash = 0; hash < 15000; ++hash) CHECK(seen.contains(hash) == wanted.contains(hash));
  }

  TEST_CASE("lengths: quantiles are exact for usual ones, and close for very long ones") {
    fsdp::LengthCounts lengths;
    for (std::int64_t length = 0; length < 1000; ++length) lengths.add(length);
    CHECK(lengths.shortest() == 0);
    CHECK(lengths.quantile(0.5) == 499);
    CHECK(lengths.quantile(0.001) == 0);
    CHECK(lengths.quantile(1.0) == 999);
    lengths.add(1000001);
    CHECK(lengths.longest() == 1000001);
    fsdp::LengthCounts one;
    one.add(100001);
    CHECK(one.shortest() == 100001);
    CHECK(lengths.quantile(1.0) <= 1000001);
    CHECK(lengths.quantile(1.0) > 984000);
    const auto bars = lengths.bars();
    CHECK(bars[0].documents == 1);
    CHECK(bars[1].from == 1);
    CHECK(bars[1].to == 1);
    CHECK(bars[9].from == 256);
    CHECK(bars[9].documents == 256);
    CHECK(bars.back().documents == 1);
  }

  TEST_CASE("copies inside and between files, leaks, and what is left out") {
    const TempDir dir;
    fsdp::TokenFileNotes notes;
    notes.vocab_size = 100;
    {
      const auto writer = fsdp::write_token_documents(dir / "validation.h5", notes);
      for (const auto& ids : {Ids{7, 8}, Ids{50}, Ids{}}) writer->add(ids);
      writer->finish();
      const auto rows = fsdp::write_packed_rows(dir / "rows.h5", 2, notes);
      rows->add(Ids{1, 2, 3});
      rows->finish();
    }
    for (const bool drops : {false, true}) {
      CorpusReport report(dir / "output.h5", drops);
      report.compare_with(dir / "validation.h5", "GPT-2");
      std::vector<std::string> kept;
      const auto add = [&](const std::string& place, const Ids& ids) {
        if (report.add(place, ids)) kept.push_back(place);
      };
      add("a.jsonl: line 1", {1, 2, 3});
      add("a.jsonl: line 2", {7, 8});
      add("a.jsonl: line 4", {});
      add("a.jsonl: line 9", {1, 2, 3});
      add("b.json: element 1 at byte 77", {1, 2, 3});
      add("b.json: element 2 at byte 99", {});
      add("b.json: element 3 at byte 99", {1, 2});
      add("2026/c1.txt", {1, 2});
      report.finish();
      CHECK(report.lengths().documents() == 8);
      CHECK(report.empty() == 2);
      CHECK(report.copies().groups == 2);
      CHECK(report.copies().inside == 1);
      CHECK(report.copies().between == 2);
      CHECK(report.copies().largest == 3);
      REQUIRE(report.copies().examples.size() == 3);
      std::set<std::string> examples;
      for (const auto& [document, first] : report.copies().examples) examples.insert(document + " is " + first);
      CHECK(examples == std::set<std::string>{"a.jsonl: line 9 is a.jsonl: line 1",
                                              "b.json: element 1 is a.jsonl: line 1",
                                              "2026/c1.txt is b.json: element 3"});
      CHECK(report.sources()[0].copies == 1);
      REQUIRE(report.against().size() == 1);
      CHECK(report.against()[0].documents == 3);
      CHECK(report.against()[0].found == 1);
      CHECK(report.against()[0].examples[0].document == "a.jsonl: line 2");
      CHECK(report.dropped() == (drops ? 4 : 0));
      CHECK(kept.size() == (drops ? 4 : 8));
    }
    CorpusReport report(dir / "output.h5", false);
    {
      auto other = notes;
      other.tokenizer_description = "Llama";
      const auto writer = fsdp::write_token_documents(dir / "other.h5", other);
      writer->add(Ids{1});
      writer->finish();
      const auto packed = fsdp::write_packed_documents(dir / "packed.h5", {4, 1}, notes);
      packed->add(Ids{1, 2, 3});
      packed->finish();
    }
    CHECK_THROWS_WITH_AS(report.compare_with(dir / "other.h5", "GPT-2"),
                         doctest::Contains("of Llama, and these are of GPT-2"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(report.compare_with(dir / "packed.h5", "GPT-2"), doctest::Contains("cut to share rows"),
                         fsdp::FormatError);
    CHECK_THROWS_WITH_AS(report.compare_with(dir / "rows.h5", "GPT-2"), doctest::Contains("holds rows"),
                         fsdp::FormatError);
  }
}
