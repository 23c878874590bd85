#include "lib/documents/data_piece.hpp"

#include "tests/unit/documents/corpus_support.hpp"

using namespace fsdp::test;

namespace {

/// Reads the pieces of a file of JSON Lines one by one, with each place as it is in the whole file.
void read_pieces(const std::filesystem::path& file, std::int64_t piece_bytes, Texts& texts, Texts& places) {
  for (const auto& piece : fsdp::cut_into_pieces(file, piece_bytes)) {
    const auto documents = fsdp::open_documents(piece, "");
    for (std::string text; documents->next(text);) {
      texts.push_back(text);
      places.push_back(fsdp::with_lines_before(piece, documents->where(), fsdp::lines_before(piece)));
    }
  }
}

}  // namespace

TEST_CASE("pieces of JSON Lines hold each document once, wherever the cuts are") {
  const TempDir dir;
  const std::string content =
      "\xef\xbb\xbf{\"text\": \"one\"}\n\n{\"text\": \"two\\n\"}\r\n  \n{\"text\": \"a longer one\"}\n\n\n{\"text\": "
      "\"\"}";
  for (const bool ends_line : {false, true}) {
    fsdp::File::create(dir / "a.jsonl").write(content + (ends_line ? "\n" : ""));
    const auto whole = read_all(dir / "a.jsonl");
    CHECK(whole == Texts{"one", "two\n", "a longer one", ""});
    Texts lines;
    for (const int line : {1, 3, 5, 8}) lines.push_back((dir / "a.jsonl").string() + ": line " + std::to_string(line));
    for (std::int64_t bytes = 1; bytes < 100; ++bytes) {
      Texts texts, places;
      read_pieces(dir / "a.jsonl", bytes, texts, places);
      CHECK(texts == whole);
      CHECK(places == lines);
    }
  }
}

TEST_CASE("what cannot be cut is one piece") {
  const TempDir dir;
  fsdp::File::create(dir / "list.json").write("[{\"text\": \"one\"},\n{\"text\": \"two\"}]");
  fsdp::File::create(dir / "a.csv").write("text\n\"one\ntwo\"\nthree\n");
  fsdp::File::create(dir / "a.txt").write("one\ntwo\n");
  fsdp::File::create(dir / "empty.jsonl").write("");
  for (const char* name : {"list.json", "a.csv", "a.txt", "empty.jsonl"}) {
    const auto pieces = fsdp::cut_into_pieces(dir / name, 5);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces.front().is_whole());
    CHECK(pieces.front().bytes == static_cast<std::int64_t>(std::filesystem::file_size(dir / name)));
  }
}

TEST_CASE("lines are counted in texts that begin with a place, and in no others") {
  const fsdp::DataPiece piece("a.jsonl", 5, 9);
  CHECK(fsdp::with_lines_before(piece, "a.jsonl: line 12: is no JSON", 30) == "a.jsonl: line 42: is no JSON");
  CHECK(fsdp::with_lines_before(piece, "b.jsonl: line 12", 30) == "b.jsonl: line 12");
  CHECK(fsdp::with_lines_before(piece, "a.jsonl: line many", 30) == "a.jsonl: line many");
  CHECK(fsdp::with_lines_before(piece, "", 30).empty());
}
