#include "lib/corpus/data_files.hpp"

#include "tests/unit/corpus/corpus_support.hpp"

using namespace fsdp::test;
using Paths = std::vector<std::filesystem::path>;

TEST_SUITE("corpus/data_files") {
  TEST_CASE("files stay in their order; a directory gives its data files sorted, hidden ones left out") {
    TempDir dir;
    std::filesystem::create_directories(dir / "set/b/.cache");
    for (const auto* name : {"z.csv", "set/c.parquet", "set/a.parquet", "set/b/d.parquet", "set/b/.cache/e.parquet",
                             "set/.f.parquet", "set/README.md", "set/info.json", "set/notes.txt"}) {
      fsdp::replace_file(dir / name, "x");
    }
    std::filesystem::create_symlink("../z.csv", dir / "set/link.parquet");  // as a snapshot has its files
    CHECK(fsdp::data_files({dir / "z.csv", dir / "set", dir / "z.csv"}) ==
          Paths{dir / "z.csv", dir / "set/a.parquet", dir / "set/b/d.parquet", dir / "set/c.parquet",
                dir / "set/link.parquet", dir / "z.csv"});
  }

  TEST_CASE("one kind a directory: of .json and .txt files only where there is nothing else") {
    TempDir dir;
    fsdp::replace_file(dir / "a.txt", "x");
    CHECK(fsdp::data_files({dir.path()}) == Paths{dir / "a.txt"});
    fsdp::replace_file(dir / "b.json", "x");
    CHECK(fsdp::data_files({dir.path()}) == Paths{dir / "b.json"});
    fsdp::replace_file(dir / "c.jsonl", "x");
    fsdp::replace_file(dir / "d.ndjson", "x");
    CHECK(fsdp::data_files({dir.path()}) == Paths{dir / "c.jsonl", dir / "d.ndjson"});
    fsdp::replace_file(dir / "e.csv", "x");
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir.path()}), doctest::Contains("holds 2 JSON Lines and 1 CSV files"),
                         fsdp::UsageError);
  }

  TEST_CASE("nothing there") {
    TempDir dir;
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir / "none"}), doctest::Contains("none: No such file"), fsdp::MissingInput);
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir.path()}), doctest::Contains("holds no data files"), fsdp::FormatError);
  }

  TEST_CASE("data_file_kind: by content, then by name; what is no text is refused") {
    using Kind = fsdp::DataFileKind;
    TempDir dir;
    const auto kind = [&](const char* name, std::string_view content) {
      fsdp::replace_file(dir / name, content);
      return fsdp::data_file_kind(dir / name);
    };
    CHECK(kind("a.jsonl", "{}") == Kind::json_lines);
    CHECK(kind("a.JSON", "{}") == Kind::json_lines);
    CHECK(kind("a.csv", "") == Kind::csv);
    CHECK(kind("a.tsv", "") == Kind::csv);
    CHECK(kind("a.txt", "") == Kind::text);
    CHECK(kind("a", "PAR1....") == Kind::parquet);
    CHECK(kind("a", "PA") == Kind::text);
    CHECK_THROWS_WITH_AS(kind("a.parquet", "PAR0...."), doctest::Contains("is not a Parquet file"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(kind("a.jsonl", "\x1f\x8b\x08"), doctest::Contains("gzip"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::data_file_kind(kData / "shakespeare/test.h5"), doctest::Contains("an HDF5 file"),
                         fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::data_file_kind(dir.path()), doctest::Contains("is a directory"), fsdp::FormatError);
  }

  TEST_CASE("plain text: one document, an empty file none") {
    TempDir dir;
    CHECK(read_content(dir, "a.txt", "\xef\xbb\xbfone\n\ntwo\n") == Texts{"one\n\ntwo\n"});
    CHECK(read_content(dir, "a", "no suffix") == Texts{"no suffix"});
    CHECK(read_content(dir, "a.txt", "").empty());
  }
}
