#include "tests/unit/documents/corpus_support.hpp"

using namespace fsdp::test;

TEST_SUITE("corpus/csv") {
  TEST_CASE("quoting, line ends, blank lines, empty cells, a byte-order mark") {
    TempDir dir;
    CHECK(read_content(dir, "a.csv",
                       "\xef\xbb\xbfid,\"text\",x\r\n"
                       "1,plain,a\r\n"
                       "\r\n"
                       "2,\"with, comma and \"\"quotes\"\" and\r\na line end\",\"b\"\n"
                       "3,,c\n"
                       "4,\"\",\r"
                       "5,a \"quote\" inside,\n"
                       "6,last,") ==
          Texts{"plain", "with, comma and \"quotes\" and\r\na line end", "", "", "a \"quote\" inside", "last"});
  }

  TEST_CASE("tabulators in .tsv, another field") {
    TempDir dir;
    CHECK(read_content(dir, "a.tsv", "text\tother\na, b\tc\n") == Texts{"a, b"});
    CHECK(read_content(dir, "a.TSV", "text\tother\na, b\tc\n", "other") == Texts{"c"});
  }

  TEST_CASE("one cell of many MB: the shipped Shakespeare") {
    const auto texts = read_all(kData / "shakespeare" / "train.csv");
    REQUIRE(texts.size() == 1);
    CHECK(texts[0].size() > 1'000'000);
    CHECK(texts[0].starts_with("First Citizen:\nBefore we proceed any further, hear me speak.\n"));
  }

  TEST_CASE("where() is the line a record begins in") {
    TempDir dir;
    fsdp::replace_file(dir / "a.csv", "text\n\"a\nb\"\n\nc\n");
    const auto documents = fsdp::open_documents(dir / "a.csv", "");
    std::string text;
    CHECK(documents->next(text));
    CHECK(documents->where() == (dir / "a.csv").string() + ": line 2");
    CHECK(documents->next(text));
    CHECK(documents->where() == (dir / "a.csv").string() + ": line 5");
    CHECK(documents->bytes_read() == 14);
    CHECK_FALSE(documents->next(text));
  }

  TEST_CASE("what is malformed is named with its line") {
    TempDir dir;
    const auto name = (dir / "a.csv").string();
    CHECK(refusal(dir, "a.csv", "") == name + ": is empty, expected a header row with the column 'text'");
    CHECK(refusal(dir, "a.csv", "a,b\n1,2\n") == name + ": the header row has no column 'text', only 'a', 'b'");
    CHECK(refusal(dir, "a.csv", "text,id,text\n1,2,3\n") ==
          name + ": the header row has two columns 'text', and which is meant cannot be said");
    CHECK(read_content(dir, "a.csv", "id,text,id\n1,a,2\n") == Texts{"a"});
    CHECK(refusal(dir, "a.csv", "id,text\n1,a\n2,b,c\n") == name + ": line 3: has 3 fields, the header row has 2");
    CHECK(refusal(dir, "a.csv", "id,text\n1\n") == name + ": line 2: has 1 fields, the header row has 2");
    CHECK(refusal(dir, "a.csv", "id,text\n1,a\n2,\"b\nc\n") ==
          name + ": line 3: the quote that opens in line 3 is never closed");
    CHECK(refusal(dir, "a.csv", "id,text\n1,\"a\nb\"c\n") ==
          name + ": line 2: in line 3 text follows a closing quote; a quote inside a quoted cell is written twice");
  }
}
