#include "lib/tokenizers/bpe/byte_level_bpe.hpp"

#include <doctest/doctest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/token_files/token_file.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/tokenizers/random_texts.hpp"

namespace {

using Ids = std::vector<std::int32_t>;
const std::string kData = FSDP_TEST_DATA_DIR;

const fsdp::Tokenizer& gpt2() {
  static const auto tokenizer = fsdp::make_gpt2_tokenizer();
  return *tokenizer;
}

/// Returns the only `text` cell of a shipped CSV file, which is quoted.
std::string read_text_cell(const std::string& file) {
  const std::string csv = fsdp::read_text_file(file);
  REQUIRE(csv.starts_with("text\n\""));
  std::string text;
  for (std::size_t i = 6; i < csv.size(); ++i) {
    if (csv[i] == '"' && (i + 1 == csv.size() || csv[++i] != '"')) return text;
    text += csv[i];
  }
  FAIL("the cell does not end");
  return text;
}

}  // namespace

TEST_SUITE("tokenizer/byte_level_bpe") {
  TEST_CASE("encode: equals Hugging Face tokenizers on every reference text, and decodes back") {
    const auto cases = nlohmann::json::parse(fsdp::read_text_file(FSDP_FIXTURE_DIR "/tokenizers/expected.json"));
    REQUIRE(cases.size() > 10);
    for (const auto& expected : cases) {
      const auto text = expected["text"].get<std::string>();
      CAPTURE(text);
      CHECK(gpt2().encode(text) == expected["gpt2"].get<Ids>());
      CHECK(gpt2().decode(expected["gpt2"].get<Ids>()) == text);
    }
  }

  TEST_CASE("make_gpt2_tokenizer: the built-in vocabulary is the one of data/gpt2") {
    CHECK(fsdp::detail::gpt2_merges_text() == fsdp::read_text_file(kData + "/gpt2/merges.txt"));
    const auto from_files = fsdp::make_byte_level_bpe(kData + "/gpt2/vocab.json", kData + "/gpt2/merges.txt");

    REQUIRE(gpt2().vocab_size() == 50257);
    REQUIRE(from_files->vocab_size() == 50257);
    int different = 0;
    for (std::int32_t id = 0; id < 50257; ++id) different += gpt2().decode_one(id) != from_files->decode_one(id);
    CHECK(different == 0);
    CHECK(gpt2().eos_id() == 50256);
    CHECK(from_files->eos_id() == 50256);
  }

  TEST_CASE("encode: the shipped token files are the shipped texts") {
    for (const std::string split : {"train", "validation", "test"}) {
      CAPTURE(split);
      const auto ids = gpt2().encode(read_text_cell(kData + "/shakespeare/" + split + ".csv"));
      const auto rows = fsdp::open_token_file(kData + "/shakespeare/" + split + ".h5");
      REQUIRE(rows->num_records() == static_cast<std::int64_t>(ids.size()) / 257);

      Ids row(256);
      for (std::int64_t r = 0; r < rows->num_records(); ++r) {
        rows->read(r, row);
        REQUIRE(row == Ids(ids.begin() + r * 256, ids.begin() + (r + 1) * 256));
      }
    }
  }

  TEST_CASE("decode: gives back random Unicode text and random bytes") {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
      const std::string text = fsdp::test::random_text(random, 60), bytes = fsdp::test::random_bytes_text(random, 60);
      CHECK(fsdp::utf8_valid_prefix(text) == text.size());
      CHECK(gpt2().decode(gpt2().encode(text)) == text);
      CHECK(gpt2().decode(gpt2().encode(bytes)) == bytes);
    }
  }

  TEST_CASE("encode: invalid bytes split words but lose nothing") {
    auto expected = gpt2().encode("hello");
    for (const auto id : gpt2().encode("\xFF\xC3")) expected.push_back(id);
    for (const auto id : gpt2().encode(" world")) expected.push_back(id);

    CHECK(gpt2().encode("hello\xFF\xC3 world") == expected);
  }

  TEST_CASE("decode_one: a character over several ids prints once it is complete") {
    const std::string text = "a\xF0\x9F\xA5\xB8z";  // a face that GPT-2 has no piece for
    std::string pending, printed;
    std::size_t held_back = 0;
    for (const auto id : gpt2().encode(text)) {
      pending += gpt2().decode_one(id);
      const auto ready = fsdp::utf8_printable_prefix(pending);
      held_back += ready < pending.size();
      CHECK(fsdp::utf8_valid_prefix(std::string_view(pending).substr(0, ready)) == ready);
      printed += pending.substr(0, ready);
      pending.erase(0, ready);
    }
    CHECK(held_back > 0);
    CHECK(printed == text);
  }

  TEST_CASE("encode: time grows with the text, not with its square") {
    std::string letters(1 << 20, 'a'), spaces(1 << 20, ' '), invalid(1 << 20, '\x80');
    std::mt19937 random(3);
    for (std::size_t i = 0; i < letters.size(); ++i) letters[i] = static_cast<char>('a' + random() % 26);
    for (const auto& text : {letters, spaces, invalid}) {
      const auto start = std::clock();  // of the processor: the machine may be busy
      const auto ids = gpt2().encode(text);
      const auto seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      MESSAGE("1 MiB word: ", seconds, " s");
      CHECK(gpt2().decode(ids) == text);
      CHECK(seconds < 20);  // quadratic would be hours
    }
  }

  TEST_CASE("decode: an id outside the vocabulary is named") {
    CHECK_THROWS_WITH_AS(gpt2().decode(Ids{5, 50257}),
                         doctest::Contains("token id 50257 is not in the tokenizer's vocabulary of 50257"),
                         fsdp::RequestError);
    CHECK_THROWS_AS(gpt2().decode_one(-1), fsdp::RequestError);
  }

  TEST_CASE("make_byte_level_bpe: what is wrong with the files is named") {
    const fsdp::test::TempDir dir;
    const auto vocab = dir / "vocab.json";
    const auto merges = dir / "merges.txt";
    const auto make = [&] { fsdp::make_byte_level_bpe(vocab, merges); };
    const std::string good_vocab = fsdp::read_text_file(kData + "/gpt2/vocab.json");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("vocab.json"), fsdp::IoError);

    fsdp::replace_file(vocab, "[1, 2");
    fsdp::replace_file(merges, "#version: 0.2\n");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("vocab.json: at byte 6: is no JSON"), fsdp::FormatError);
    fsdp::replace_file(vocab, "[1, 2]");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("vocab.json: is no JSON object"), fsdp::FormatError);
    fsdp::replace_file(vocab, std::string(1 << 20, '['));
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("is nested deeper than 64"), fsdp::FormatError);
    fsdp::replace_file(vocab, R"({"a": 0, "b": 1000000000000})");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("piece 'b' has id 1000000000000, expected the ids 0 to 1"),
                         fsdp::FormatError);
    fsdp::replace_file(vocab, R"({"a": 0, "b": 0})");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("piece 'b' has id 0"), fsdp::FormatError);
    fsdp::replace_file(vocab, R"({"a": 0, "b": 1})");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("has no piece for byte 0"), fsdp::FormatError);

    fsdp::replace_file(vocab, good_vocab);
    for (const char* line : {"ab", "a b c", " a", "a "}) {
      CAPTURE(line);
      fsdp::replace_file(merges, std::string("#version: 0.2\nt h\n") + line + "\n");
      CHECK_THROWS_WITH_AS(make(), doctest::Contains("merges.txt: line 3 is '"), fsdp::FormatError);
    }
    fsdp::replace_file(merges, "q q\nqq q\nqqq qqq\n");
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("uses a piece that the vocabulary does not have"),
                         fsdp::FormatError);
  }

  TEST_CASE("description and marks: GPT-2 adds none by itself") {
    CHECK(gpt2().description() == "GPT-2, 50257 ids");
    CHECK(gpt2().encode_document("a") == gpt2().encode("a"));
    CHECK_FALSE(gpt2().infill_ids());
    CHECK_THROWS_WITH_AS(static_cast<void>(gpt2().encode_infill("a", "b")),
                         doctest::Contains("has no marks for infilling"), fsdp::RequestError);
  }

  TEST_CASE("make_byte_level_bpe: the config's marks and added tokens") {
    fsdp::TokenizerConfig config;
    config.where = "tokenizer_config.json";
    config.bos_token = "<s>";
    config.add_bos = config.add_eos = true;
    config.added_tokens = {{50257, "<s>"}, {50258, "<pad>"}, {50259, "  ", false}};
    const std::string folder = kData + "/gpt2/";
    const auto tokenizer = fsdp::make_byte_level_bpe(folder + "vocab.json", folder + "merges.txt", config);

    CHECK(tokenizer->vocab_size() == 50260);
    CHECK(tokenizer->decode(Ids{50257, 50258}) == "<s><pad>");
    CHECK(tokenizer->encode_document("a") == Ids{50257, 64, 50256});
    CHECK(tokenizer->encode("<s>") == gpt2().encode("<s>"));
    CHECK(tokenizer->encode("a  a") == Ids{64, 50259, 64});
    config.added_tokens = {{1 << 30, "<s>"}};
    CHECK_THROWS_WITH_AS(fsdp::make_byte_level_bpe(folder + "vocab.json", folder + "merges.txt", config),
                         doctest::Contains("added token '<s>' has id 1073741824"), fsdp::FormatError);
  }
}
