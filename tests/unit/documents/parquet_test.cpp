// Variants that Parquet allows are written with pyarrow in tests/cli/tokens_parquet_test.py.
#include "lib/documents/parquet_documents.hpp"

#include "lib/formats/arrow/parquet_plugin.hpp"

#include "tests/unit/documents/corpus_support.hpp"

using namespace fsdp::test;

TEST_CASE("a build without Parquet refuses its files and says how to build with it" * doctest::skip(!kNoParquet)) {
  const auto file = kData / "chess/validation.parquet";
  CHECK_THROWS_WITH_AS(fsdp::open_documents(file, ""), doctest::Contains("the support for these is missing"),
                       fsdp::RuntimeFailure);
}

TEST_SUITE("corpus/parquet" * doctest::skip(kNoParquet)) {
  TEST_CASE("the list column Moves of all row groups is the text of the JSON Lines file") {
    const auto texts = read_all(kData / "chess/train.parquet");
    CHECK(texts.size() == 1500);
    CHECK(texts == read_all(kData / "chess/train.jsonl"));
    CHECK(read_all(kData / "chess/train.parquet", "Moves") == texts);
  }

  TEST_CASE("a column of strings") {
    const auto results = read_all(kData / "chess/validation.parquet", "Result");
    CHECK(results.size() == 150);
    CHECK(results.front() == "1-0");
  }

  TEST_CASE("where() counts rows from 0; bytes_read() ends at the file's size") {
    const auto file = kData / "chess/validation.parquet";
    const auto documents = fsdp::open_documents(file, "");
    std::string text;
    CHECK(documents->next(text));
    CHECK(documents->where() == file.string() + ": row 0");
    while (documents->next(text)) {
    }
    CHECK(documents->where() == file.string() + ": row 149");
    CHECK(documents->bytes_read() == static_cast<std::int64_t>(std::filesystem::file_size(file)));
  }

  TEST_CASE("a column that is not there") {
    CHECK_THROWS_WITH_AS(
        read_all(kData / "chess/train.parquet", "text"),
        doctest::Contains("train.parquet: has no column 'text', only 'Moves', 'Termination', 'Result'"),
        fsdp::FormatError);
  }

  TEST_CASE("cut and damaged files are refused, naming the row group and the row") {
    TempDir dir;
    const auto whole = fsdp::read_text_file(kData / "chess/train.parquet");
    CHECK(refusal(dir, "cut.parquet", std::string_view(whole).substr(0, whole.size() / 2)).find("cut.parquet: ") !=
          std::string::npos);
    CHECK(refusal(dir, "short.parquet", "PAR1").find("short.parquet: ") != std::string::npos);

    // Bytes in the middle of the first column belong to its pages.
    int refused = 0;
    for (const std::size_t at : {50u, 2000u, 30000u, 60000u}) {
      auto damaged = whole;
      for (std::size_t i = 0; i < 40; ++i) damaged[at + i] = static_cast<char>(damaged[at + i] ^ 0x5a);
      const auto text = refusal(dir, "damaged.parquet", damaged);
      CAPTURE(text);
      if (text == "nothing was refused") continue;
      ++refused;
      CHECK(text.find("damaged.parquet: row group ") != std::string::npos);
      CHECK(text.find(", row ") != std::string::npos);
    }
    CHECK(refused > 0);  // without checksums a page may still decode to other text
  }

  TEST_CASE("footers with flipped bits end in an exception or in rows, not in a crash") {
    TempDir dir;
    const auto whole = fsdp::read_text_file(kData / "chess/validation.parquet");
    int refused = 0;
    for (std::size_t i = 0; i < 300; ++i) {
      auto damaged = whole;
      const auto at = whole.size() - 9 - i * 2;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (i % 8)));
      try {
        const auto rows = read_content(dir, "footer.parquet", damaged).size();
        CHECK(rows <= 150);
      } catch (const fsdp::FormatError& error) {
        ++refused;
        CHECK(std::string(error.what()).find("footer.parquet: ") != std::string::npos);
      }
    }
    CHECK(refused > 10);
  }
}

TEST_SUITE("corpus/parquet_plugin") {
  TEST_CASE("it is looked for beside the program") {
    const auto candidates = fsdp::detail::parquet_plugin_candidates("/opt/fsdp/bin");
    CHECK(candidates == std::vector<std::filesystem::path>{"/opt/fsdp/lib/fsdp/libfsdp_parquet.so",
                                                           "/opt/fsdp/lib/libfsdp_parquet.so"});
  }

  TEST_CASE("a library that is not it is refused") {
    TempDir dir;
    fsdp::replace_file(dir / "broken.so", "no library");
    CHECK_THROWS_WITH_AS(fsdp::detail::open_parquet_plugin(dir / "broken.so", "abi"),
                         doctest::Contains("the Parquet support does not load"), fsdp::RuntimeFailure);
    CHECK_THROWS_WITH_AS(fsdp::detail::open_parquet_plugin("libm.so.6", "abi"), doctest::Contains("it lacks fsdp_"),
                         fsdp::RuntimeFailure);
  }

  TEST_CASE("one of another build is refused" * doctest::skip(kNoParquet)) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    CHECK_THROWS_WITH_AS(
        fsdp::detail::open_parquet_plugin(fsdp::detail::parquet_plugin_candidates(program.parent_path()).back(), "abi"),
        doctest::Contains("belongs to another build"), fsdp::RuntimeFailure);
  }
}
