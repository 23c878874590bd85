#include "lib/encoding/tokenize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "lib/token_files/token_file.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/unit/documents/corpus_support.hpp"

using namespace fsdp::test;

namespace {

const fsdp::Tokenizer& gpt2() {
  static const auto tokenizer = fsdp::open_tokenizer("gpt2");
  return *tokenizer;
}

fsdp::TokenizeOptions options(const std::filesystem::path& input, const std::filesystem::path& output) {
  fsdp::TokenizeOptions o;
  o.inputs = {input};
  o.output = output;
  o.tokenizer_name = "gpt2";
  return o;
}

using Ids = std::vector<std::int32_t>;

Ids all_rows(const std::filesystem::path& file) {
  const auto rows = fsdp::open_token_file(file);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < rows->num_records(); ++i) numbers.push_back(i);
  Ids ids(numbers.size() * static_cast<std::size_t>(rows->row_length()));
  rows->read_rows(numbers, ids);
  return ids;
}

std::vector<Ids> all_documents(const std::filesystem::path& file) {
  const auto documents = fsdp::open_token_file(file);
  std::vector<Ids> all;
  for (std::int64_t i = 0; i < documents->num_records(); ++i) {
    all.emplace_back(static_cast<std::size_t>(documents->length(i)));
    documents->read(i, all.back());
  }
  return all;
}

std::string jsonl(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += "{\"text\": \"Line " + std::to_string(i) + std::string(static_cast<std::size_t>(i % 50), 'a') + "\"}\n";
  }
  return text;
}

bool is_empty(const TempDir& dir) { return std::filesystem::is_empty(dir.path()); }

}  // namespace

TEST_SUITE("corpus/tokenize") {
  TEST_CASE("the shipped Shakespeare rows come out of their text") {
    TempDir dir;
    for (const std::string split : {"train", "validation", "test"}) {
      CAPTURE(split);
      const auto shipped = kData / "shakespeare" / (split + ".h5");
      const auto report = fsdp::tokenize(options(kData / "shakespeare" / (split + ".csv"), dir / "out.h5"), gpt2());
      const auto rows = fsdp::open_token_file(shipped);
      CHECK(report.documents == 1);
      CHECK(report.rows == rows->num_records());
      CHECK(report.dropped_tokens == report.tokens - report.rows * 256);
      CHECK(fsdp::open_token_file(dir / "out.h5")->row_length() == 256);
      CHECK((all_rows(dir / "out.h5") == all_rows(shipped)));
    }
  }

  TEST_CASE("documents: each as the tokenizer encodes it, empty ones kept, in order for any number of threads") {
    TempDir dir;
    const auto input = dir / "in.jsonl";
    fsdp::replace_file(input, jsonl(5000) + "{\"text\": \"\"}\n{\"text\": null}\n" + jsonl(3));
    std::vector<std::vector<Ids>> results;
    for (const int threads : {1, 3}) {
      auto o = options(input, dir / ("t" + std::to_string(threads) + ".h5"));
      o.layout = fsdp::TokenLayout::documents;
      o.threads = threads;
      const auto report = fsdp::tokenize(o, gpt2());
      CHECK(report.documents == 5005);
      CHECK(report.empty_documents == 2);
      results.push_back(all_documents(o.output));
    }
    CHECK((results[0] == results[1]));
    const auto texts = read_all(input);
    REQUIRE(results[0].size() == texts.size());
    bool equal = true;
    for (std::size_t i = 0; i < texts.size(); ++i) equal = equal && results[0][i] == gpt2().encode_document(texts[i]);
    CHECK(equal);
    CHECK((fsdp::read_text_file(dir / "t1.h5") == fsdp::read_text_file(dir / "t3.h5")));
  }

  TEST_CASE("packed rows do not depend on threads either; max_rows ends early; several inputs follow each other") {
    TempDir dir;
    fsdp::replace_file(dir / "a.jsonl", jsonl(4000));
    fsdp::replace_file(dir / "b.jsonl", jsonl(10));
    Ids expected;
    for (int round = 0; round < 2; ++round) {
      auto o = options(dir / "a.jsonl", dir / "out.h5");
      o.inputs.push_back(dir / "b.jsonl");
      o.seq_len = 16;
      o.max_rows = 4005;
      o.threads = 1 + round * 2;
      const auto report = fsdp::tokenize(o, gpt2());
      CHECK(report.documents == 4005);
      CHECK(report.files == o.inputs);
      CHECK(report.rows == report.tokens / 17);
      if (round == 0) expected = all_rows(o.output);
      CHECK((all_rows(o.output) == expected));
    }
    Ids first;
    for (const auto& text : read_all(dir / "a.jsonl")) {
      const auto ids = gpt2().encode_document(text);
      first.insert(first.end(), ids.begin(), ids.end());
      if (first.size() > 1000) break;
    }
    CHECK((Ids(expected.begin(), expected.begin() + 1000) == Ids(first.begin(), first.begin() + 1000)));
  }

  TEST_CASE("plain text is a stream, other files are documents, and both together need a word") {
    TempDir dir;
    fsdp::replace_file(dir / "a.txt", fmt::format("{} one two three", std::string(400, 'x')));
    fsdp::replace_file(dir / "b.jsonl", jsonl(100));
    const auto encoded = [&](std::vector<std::filesystem::path> inputs, fsdp::TokenLayout layout) {
      auto o = options(inputs.front(), dir / "out.h5");
      o.inputs = std::move(inputs);
      o.layout = layout;
      o.seq_len = 8;
      return fsdp::tokenize(o, gpt2()).is_packed;
    };
    using enum fsdp::TokenLayout;
    CHECK(encoded({dir / "a.txt", dir / "a.txt"}, automatic));
    CHECK_FALSE(encoded({dir / "b.jsonl"}, automatic));
    CHECK(encoded({dir / "a.txt", dir / "b.jsonl"}, packed));
    CHECK_FALSE(encoded({dir / "a.txt", dir / "b.jsonl"}, documents));
    CHECK_THROWS_WITH_AS(encoded({dir / "a.txt", dir / "b.jsonl"}, automatic),
                         doctest::Contains("the others hold documents"), fsdp::RequestError);
  }

  TEST_CASE("overlapping rows are the ids of the texts, with end marks between them") {
    TempDir dir;
    fsdp::replace_file(dir / "a.jsonl", jsonl(50));
    auto o = options(dir / "a.jsonl", dir / "out.h5");
    o.layout = fsdp::TokenLayout::overlapping;
    o.end_marks = fsdp::EndMarks::automatic;
    o.seq_len = 9;
    const auto report = fsdp::tokenize(o, gpt2());
    Ids all;
    for (const auto& text : read_all(dir / "a.jsonl")) {
      if (!all.empty()) all.push_back(*gpt2().eos_id());
      const auto ids = gpt2().encode_document(text);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    CHECK(report.tokens == static_cast<std::int64_t>(all.size()));
    CHECK(report.dropped_tokens == (report.tokens - 1) % 8);
    Ids expected;
    for (std::int64_t row = 0; row < report.rows; ++row)
      expected.insert(expected.end(), all.begin() + row * 8, all.begin() + row * 8 + 9);
    CHECK(report.rows == (report.tokens - 1) / 8);
    CHECK((all_rows(dir / "out.h5") == expected));
  }

  TEST_CASE("a split has each document once, in the same part in any order of the files") {
    TempDir dir;
    fsdp::replace_file(dir / "a.jsonl", jsonl(1500));
    fsdp::replace_file(dir / "b.jsonl", "{\"text\": \"Line 3aaa\", \"id\": 7}\n" + jsonl(40));
    const auto part = [&](bool held_out, bool reverse) {
      auto o = options(dir / "a.jsonl", dir / "out.h5");
      o.inputs = {dir / "a.jsonl", dir / "b.jsonl"};
      if (reverse) std::swap(o.inputs[0], o.inputs[1]);
      o.layout = fsdp::TokenLayout::documents;
      o.split = {0.1, held_out};
      o.threads = 3;
      const auto report = fsdp::tokenize(o, gpt2());
      auto found = all_documents(o.output);
      CHECK(report.documents == static_cast<std::int64_t>(found.size()));
      CHECK(report.documents + report.elsewhere == 1541);
      std::sort(found.begin(), found.end());
      return found;
    };
    const auto held_out = part(true, false), others = part(false, false);
    CHECK(held_out.size() > 110);
    CHECK(held_out.size() < 200);
    CHECK((part(true, true) == held_out));
    std::vector<Ids> both;
    std::set_intersection(held_out.begin(), held_out.end(), others.begin(), others.end(), std::back_inserter(both));
    CHECK(both.empty());
    auto o = options(dir / "b.jsonl", dir / "out.h5");
    o.layout = fsdp::TokenLayout::documents;
    o.split = {1e-9, true};
    CHECK_THROWS_WITH_AS(fsdp::tokenize(o, gpt2()), doctest::Contains("none of 41 documents is held out"),
                         fsdp::FormatError);
  }

  TEST_CASE("Parquet and JSON Lines of the same games give the same tokens" * doctest::skip(kNoParquet)) {
    TempDir dir;
    for (const bool documents : {false, true}) {
      for (const std::string suffix : {"parquet", "jsonl"}) {
        auto o = options(kData / "chess" / ("train." + suffix), dir / (suffix + ".h5"));
        o.layout = documents ? fsdp::TokenLayout::documents : fsdp::TokenLayout::packed;
        o.threads = 2;
        CHECK(fsdp::tokenize(o, gpt2()).documents == 1500);
      }
      if (documents) {
        CHECK((all_documents(dir / "parquet.h5") == all_documents(dir / "jsonl.h5")));
      } else {
        CHECK((all_rows(dir / "parquet.h5") == all_rows(dir / "jsonl.h5")));
      }
    }
  }

  TEST_CASE("the first bad document is told whatever the number of threads, and nothing is left behind") {
    TempDir dir, out;
    const auto input = dir / "in.jsonl";
    fsdp::replace_file(input, jsonl(3000) + "{\"text\": 1}\n" + jsonl(10) + "broken\n");
    for (const int threads : {1, 3}) {
      auto o = options(input, out / "out.h5");
      o.threads = threads;
      CHECK_THROWS_WITH_AS(fsdp::tokenize(o, gpt2()), doctest::Contains("in.jsonl: line 3001: 'text' holds a number"),
                           fsdp::FormatError);
      CHECK(is_empty(out));
    }
  }

  TEST_CASE("an old output stays when the new one fails and is replaced when it is complete") {
    TempDir dir;
    const auto output = dir / "out.h5";
    fsdp::replace_file(output, "old");
    fsdp::replace_file(dir / "in.jsonl", jsonl(100) + "broken\n");
    CHECK_THROWS_AS(fsdp::tokenize(options(dir / "in.jsonl", output), gpt2()), fsdp::FormatError);
    CHECK(fsdp::read_text_file(output) == "old");
    fsdp::replace_file(dir / "in.jsonl", jsonl(100));
    fsdp::tokenize(options(dir / "in.jsonl", output), gpt2());
    CHECK(fsdp::is_token_file(output));
  }

  TEST_CASE("a stop leaves nothing") {
    TempDir dir, out;
    fsdp::replace_file(dir / "in.jsonl", jsonl(20000));
    for (const int polls : {0, 3}) {
      auto o = options(dir / "in.jsonl", out / "out.h5");
      o.layout = polls == 0 ? fsdp::TokenLayout::documents : fsdp::TokenLayout::packed;
      int asked = 0;
      const auto report = fsdp::tokenize(o, gpt2(), {}, [&] { return asked++ >= polls; });
      CHECK(report.stopped);
      CHECK(is_empty(out));
    }
  }

  TEST_CASE("progress rises to all bytes") {
    TempDir dir;
    fsdp::replace_file(dir / "in.jsonl", jsonl(20000));
    std::vector<fsdp::TokenizeProgress> seen;
    fsdp::tokenize(options(dir / "in.jsonl", dir / "out.h5"), gpt2(), [&](const auto& now) { seen.push_back(now); });
    REQUIRE(seen.size() > 2);
    for (std::size_t i = 1; i < seen.size(); ++i) CHECK(seen[i].bytes_read >= seen[i - 1].bytes_read);
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(dir / "in.jsonl"));
    CHECK(seen.back().bytes_read == size);
    CHECK(seen.back().bytes_total == size);
    CHECK(seen.back().documents == 20000);
  }

  TEST_CASE("what cannot be done is said") {
    TempDir dir;
    const auto input = dir / "in.jsonl";
    fsdp::replace_file(input, "{\"text\": \"a few words\"}\n");
    CHECK_THROWS_WITH_AS(fsdp::tokenize(options(input, dir / "out.h5"), gpt2()),
                         doctest::Contains("3 token ids do not fill one row, which takes 257"), fsdp::FormatError);
    fsdp::replace_file(dir / "empty.jsonl", "\n\n");
    CHECK_THROWS_WITH_AS(fsdp::tokenize(options(dir / "empty.jsonl", dir / "out.h5"), gpt2()),
                         doctest::Contains("no documents in "), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::tokenize(options(input, input), gpt2()), doctest::Contains("is the output and an input"),
                         fsdp::RequestError);
    CHECK_THROWS_WITH_AS(fsdp::tokenize(options(input, dir.path()), gpt2()), doctest::Contains("is a directory"),
                         fsdp::RequestError);
    CHECK_THROWS_WITH_AS(fsdp::tokenize(options(input, dir / "none/out.h5"), gpt2()),
                         doctest::Contains("there is no directory"), fsdp::IoError);
    auto short_rows = options(input, dir / "out.h5");
    short_rows.seq_len = 1;
    CHECK_THROWS_AS(fsdp::tokenize(short_rows, gpt2()), fsdp::RequestError);
    CHECK_FALSE(std::filesystem::exists(dir / "out.h5"));
  }
}
