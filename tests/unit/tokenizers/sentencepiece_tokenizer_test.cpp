#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"

#include <doctest/doctest.h>
#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/unit/tokenizers/random_texts.hpp"

namespace {

using Ids = std::vector<std::int32_t>;
const std::string kModel = FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model";

const fsdp::Tokenizer& llama() {
  static const auto tokenizer = fsdp::make_sentencepiece_tokenizer(kModel);
  return *tokenizer;
}

}  // namespace

TEST_SUITE("tokenizer/sentencepiece_tokenizer") {
  TEST_CASE("encode: equals the sentencepiece package on every reference text, and decodes back") {
    const auto cases = nlohmann::json::parse(fsdp::read_text_file(FSDP_FIXTURE_DIR "/tokenizers/expected.json"));
    REQUIRE(cases.size() > 10);
    for (const auto& expected : cases) {
      const auto text = expected["text"].get<std::string>();
      CAPTURE(text);
      CHECK(llama().encode(text) == expected["sentencepiece"].get<Ids>());
      CHECK(llama().decode(expected["sentencepiece"].get<Ids>()) == text);
    }
  }

  TEST_CASE("decode: gives back random Unicode text and random bytes") {
    std::mt19937 random(8);
    for (int round = 0; round < 300; ++round) {
      const std::string text = fsdp::test::random_text(random, 60), bytes = fsdp::test::random_bytes_text(random, 60);
      CHECK(llama().decode(llama().encode(text)) == text);
      CHECK(llama().decode(llama().encode(bytes)) == bytes);
    }
  }

  TEST_CASE("encode: a long text, taken in parts, is what the library makes of it at once") {
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.Load(kModel).ok());
    std::string text = fsdp::read_text_file(FSDP_TEST_DATA_DIR "/shakespeare/validation.csv").substr(0, 60000);
    std::mt19937 random(5);
    for (int i = 0; i < 2000; ++i) text += fsdp::test::random_text(random, 6) + std::string(random() % 5, ' ');
    for (const auto& whole : {text, std::string(9000, ' '), std::string(9000, 'a') + " b"}) {
      std::vector<int> expected;
      REQUIRE(processor.Encode(whole, &expected).ok());
      CHECK(llama().encode(whole) == expected);
    }
  }

  TEST_CASE("encode: bytes that are no UTF-8 have the pieces of bytes, and the text goes on behind them") {
    auto expected = llama().encode("ab");
    for (const int byte : {0xFF, 0xC3}) {
      for (std::int32_t id = 0; id < llama().vocab_size(); ++id) {
        if (llama().decode_one(id) == std::string(1, static_cast<char>(byte))) expected.push_back(id);
      }
    }
    const auto whole = llama().encode("a cd");  // as " a" + " cd"
    expected.insert(expected.end(), whole.begin() + 1, whole.end());

    CHECK(llama().encode("ab\xFF\xC3 cd") == expected);
  }

  TEST_CASE("decode_one: spaces and bytes as inside a text, nothing for marks") {
    CHECK(llama().decode_one(1).empty());
    CHECK(llama().decode_one(2).empty());
    std::string text;
    for (const auto id : llama().encode("to be \xF0\x9F\xA5\xB8")) text += llama().decode_one(id);
    CHECK(text == " to be \xF0\x9F\xA5\xB8");
    CHECK(llama().decode(Ids{1, 2}) == "");
    CHECK(llama().decode(llama().encode_document(" x")) == " x");
    CHECK_THROWS_WITH_AS(llama().decode_one(1000), doctest::Contains("token id 1000 is not in the tokenizer's"),
                         fsdp::RequestError);
  }

  TEST_CASE("encode_document: the beginning mark alone unless the config says otherwise") {
    const auto ids = llama().encode("to be");
    Ids with_bos{1};
    with_bos.insert(with_bos.end(), ids.begin(), ids.end());
    CHECK(llama().encode_document("to be") == with_bos);
    CHECK(llama().encode_document("") == Ids{1});
    CHECK(llama().bos_id() == 1);
    CHECK(llama().eos_id() == 2);

    fsdp::TokenizerConfig config;
    config.add_bos = false;
    config.add_eos = true;
    auto with_eos = ids;
    with_eos.push_back(2);
    CHECK(fsdp::make_sentencepiece_tokenizer(kModel, config)->encode_document("to be") == with_eos);
  }

  TEST_CASE("make_sentencepiece_tokenizer: added tokens count and decode to their names") {
    fsdp::TokenizerConfig config;
    config.where = "added_tokens.json";
    config.added_tokens = {{1, "<s>"}, {1000, "<pad>"}, {1001, "<|im_end|>"}};
    config.eos_token = "<|im_end|>";
    const auto tokenizer = fsdp::make_sentencepiece_tokenizer(kModel, config);
    CHECK(tokenizer->vocab_size() == 1002);
    CHECK(tokenizer->eos_id() == 1001);
    CHECK(tokenizer->decode(Ids{1, 1000, 1001}) == "<pad><|im_end|>");
    CHECK(tokenizer->encode("<pad>") == llama().encode("<pad>"));

    config.added_tokens = {{2000000, "<pad>"}};
    CHECK_THROWS_WITH_AS(
        fsdp::make_sentencepiece_tokenizer(kModel, config),
        doctest::Contains(
            "added_tokens.json: added token '<pad>' has id 2000000, but the tokenizers library gives it 1000"),
        fsdp::FormatError);
  }

  TEST_CASE("encode_infill: the suffix has no space before it") {
    REQUIRE(llama().infill_ids());
    const auto marks = *llama().infill_ids();
    CHECK(marks.prefix == 3);
    CHECK(marks.suffix == 4);
    CHECK(marks.middle == 5);
    CHECK(marks.end == 6);
    const auto letter = [&](const char* text) { return llama().encode(text); };
    REQUIRE(letter("b").size() == 1);
    REQUIRE(letter("1b").size() == 3);  // a space, the digit and the letter that goes on
    const auto inside = letter("1b").back();

    CHECK(llama().encode_infill("b", "b") == Ids{1, 3, letter("b")[0], 4, inside, 5});
    CHECK(llama().encode_infill("", " b") == Ids{1, 3, 4, letter("b")[0], 5});
    fsdp::TokenizerConfig config;
    config.middle_token = "<none>";
    CHECK_FALSE(fsdp::make_sentencepiece_tokenizer(kModel, config)->infill_ids());
  }

  TEST_CASE("encode: threads may share a tokenizer") {
    const std::string text = fsdp::read_text_file(FSDP_TEST_DATA_DIR "/shakespeare/test.csv").substr(0, 30000);
    const auto expected = llama().encode(text);
    std::vector<Ids> results(4);
    {
      std::vector<std::jthread> threads;
      for (auto& result : results) threads.emplace_back([&] { result = llama().encode(text); });
    }
    for (const auto& result : results) CHECK(result == expected);
  }
}
