#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"
#include "tests/support/captured_stderr.hpp"
#include "tests/support/temp_files.hpp"

namespace {

const std::string kModel = FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model";

/// A length-delimited field of fewer than 128 bytes.
std::string field(int number, const std::string& content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} + content;
}

std::string number_field(int number, int value) {
  return std::string{static_cast<char>(number << 3), static_cast<char>(value)};
}

}  // namespace

TEST_SUITE("tokenizer/sentencepiece_model") {
  TEST_CASE("parse: the fixture's pieces and settings") {
    const auto model = fsdp::parse_sentencepiece_model(fsdp::read_text_file(kModel), kModel);
    REQUIRE(model.pieces.size() == 1000);
    CHECK(model.pieces[0].type == fsdp::SentencePieceModel::Type::unknown);
    CHECK(model.pieces[1].text == "<s>");
    CHECK(model.pieces[1].type == fsdp::SentencePieceModel::Type::control);
    CHECK(model.pieces[3].text == "▁<PRE>");
    CHECK(model.pieces[3].type == fsdp::SentencePieceModel::Type::user_defined);
    CHECK(model.pieces[7].text == "<0x00>");
    CHECK(model.pieces[7].type == fsdp::SentencePieceModel::Type::byte);
    CHECK(model.normalizer.dummy_prefix);
    CHECK(!model.normalizer.remove_extra_spaces);
    CHECK(model.normalizer.character_map.empty());
    CHECK(model.bos_text == "<s>");
  }

  TEST_CASE("make_sentencepiece_tokenizer: what Llama's models do not do is named") {
    const fsdp::test::TempDir dir;
    const auto file = dir / "tokenizer.model";
    const std::string good = fsdp::read_text_file(kModel);
    const auto refused = [&](const std::string& bytes, const char* message) {
      fsdp::replace_file(file, bytes);
      CHECK_THROWS_WITH_AS(fsdp::make_sentencepiece_tokenizer(file), doctest::Contains(message), fsdp::FormatError);
    };
    // A later field of a protocol buffer replaces an earlier one.
    refused(good + field(2, number_field(3, 1)), "tokenizer.model: model type 1 (2 is byte-pair encoding)");
    refused(good + field(2, std::string("\xC0\x01\x01", 3)), "putting spaces behind words");
    refused(good + field(5, field(2, "xx")), "a denormalizer");
    refused(good + field(3, field(2, "xx")), "character map of 2 bytes says that its trie has 0");
    refused(good + field(3, field(2, std::string("\4\0\0\0\0\0\0\0a", 9))), "does not end with a zero");
    refused(good + field(3, field(2, std::string("\4\0\0\0\0\0\0\0\0", 9))), "leads outside of its trie");
    refused(good + field(3, field(2, std::string("\xFF\0\0\0\0\0\0\0\0", 9))), "its trie has 255");
    refused(good + field(1, field(1, "a") + number_field(3, 7)), "a piece has type 7");
    refused(good + field(1, field(1, "\xFF")), "a piece is empty or no valid UTF-8");
    refused(good + field(1, field(1, "<0x0G>") + number_field(3, 6)), "");
    refused(good + field(1, field(1, "e4")) + field(1, field(1, "e4")), "SentencePiece refuses the model");
    refused("", "holds no pieces");
    refused("{\"model\": {}}", "tokenizer.model: at byte ");
    refused(field(1, field(1, "a")) + field(2, number_field(3, 2)) + field(3, number_field(4, 0)),
            "has no piece for byte 0");
    refused(good.substr(0, good.size() / 2), "the file is damaged or incomplete");
    CHECK_THROWS_WITH_AS(fsdp::make_sentencepiece_tokenizer(dir / "none.model"), doctest::Contains("none.model"),
                         fsdp::IoError);
  }

  TEST_CASE("parse_sentencepiece_model: a table of tiktoken is told by its name") {
    for (const char* bytes : {"IQ== 0\nIg== 1\n", "dGhl 257\r\n", "dGhl 257"})
      CHECK_THROWS_WITH_AS(fsdp::parse_sentencepiece_model(bytes, "tokenizer.model"),
                           doctest::Contains("tokenizer.model: is a table of tiktoken"), fsdp::FormatError);
  }

  TEST_CASE("make_sentencepiece_tokenizer: damaged models are refused or work, and nothing is printed") {
    const fsdp::test::TempDir dir;
    const auto file = dir / "tokenizer.model";
    const std::string good = fsdp::read_text_file(kModel);
    std::mt19937 random(2);
    int refused = 0, loaded = 0;
    std::string printed;
    {
      fsdp::test::CapturedStderr captured(dir / "stderr");
      // A self test that fails would be reported by the library.
      fsdp::replace_file(file, good + field(4, field(1, field(1, "a") + field(2, "b"))));
      CHECK(fsdp::make_sentencepiece_tokenizer(file)->encode("a").size() == 1);
      for (int round = 0; round < 250; ++round) {
        std::string bytes = good;
        if (round % 5 == 0) {
          bytes.resize(random() % bytes.size());
        } else {
          for (unsigned i = 0; i < 1 + random() % 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
        }
        fsdp::replace_file(file, bytes);
        try {
          const auto tokenizer = fsdp::make_sentencepiece_tokenizer(file);
          const std::string text = "to be e2e4 \xFF \xE2\x82\xAC";
          for (const auto id : tokenizer->encode(text)) CHECK(id < tokenizer->vocab_size());
          for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) static_cast<void>(tokenizer->decode_one(id));
          ++loaded;
        } catch (const fsdp::FormatError& error) {
          CHECK(std::string(error.what()).find("tokenizer.model") != std::string::npos);
          ++refused;
        }
      }
      printed = captured.text();
    }
    CHECK(printed.empty());
    CHECK(refused > 20);
    CHECK(loaded > 20);
  }
}
