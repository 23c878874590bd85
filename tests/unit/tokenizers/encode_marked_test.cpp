#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/bpe/byte_level_bpe.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"
#include "lib/tokenizers/vocabulary/nfc.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/tokenizers/random_texts.hpp"

namespace {

using MarkedIds = std::vector<std::int32_t>;
const std::string kChat = FSDP_FIXTURE_DIR "/chat/tokenizers/";

std::shared_ptr<const fsdp::Tokenizer> opened(const std::string& name) { return fsdp::open_tokenizer(kChat + name); }

/// Checks that the parts are adjacent and cover the whole text.
void check_parts(const fsdp::AlignedIds& encoded, std::string_view text) {
  REQUIRE(encoded.parts.size() == encoded.ids.size());
  std::size_t at = 0;
  for (const auto& part : encoded.parts) {
    CHECK(part.begin == at);
    CHECK(part.end >= part.begin);
    at = part.end;
  }
  CHECK(at == text.size());
}

}  // namespace

TEST_SUITE("tokenizer/encode_marked") {
  TEST_CASE("without names it is encode(), and the parts are the text") {
    std::mt19937 random(3);
    const auto gpt2 = fsdp::make_gpt2_tokenizer();
    const auto llama = fsdp::make_sentencepiece_tokenizer(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model");
    const auto llama2 = opened("llama2"), llama3 = opened("llama3"), gemma = opened("gemma");
    const std::vector<const fsdp::Tokenizer*> all{gpt2.get(), llama.get(), llama2.get(), llama3.get(), gemma.get()};
    for (int round = 0; round < 60; ++round) {
      for (const auto& text : {fsdp::test::random_text(random, 40), fsdp::test::random_bytes_text(random, 40)}) {
        for (const auto* tokenizer : all) {
          CAPTURE(tokenizer->description());
          const auto encoded = tokenizer->encode_marked(text, {});
          CHECK(encoded.ids == tokenizer->encode(text));
          check_parts(encoded, text);
        }
      }
    }
  }

  TEST_CASE("each byte of a character without a piece is a part") {
    const auto model = fsdp::make_sentencepiece_tokenizer(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model");
    const std::string text = "a\xF0\x9F\xA6\x84 ok";
    const auto encoded = model->encode_marked(text, {});
    check_parts(encoded, text);
    std::size_t single = 0;
    for (const auto& part : encoded.parts)
      single += part.begin >= 1 && part.end <= 5 && part.end == part.begin + 1 ? 1 : 0;
    CHECK(single == 4);
  }

  TEST_CASE("names of special tokens are tokens, but not in plain ranges") {
    const auto chatml = opened("chatml");
    const std::string text = "<|im_start|>a<|im_end|>b";
    const auto encoded = chatml->encode_marked(text, {});
    CHECK(encoded.ids.front() == 481);
    CHECK(encoded.ids[encoded.ids.size() - 2] == 482);
    check_parts(encoded, text);
    const fsdp::TextRange second{13, text.size()};
    const auto half_plain = chatml->encode_marked(text, {&second, 1});
    CHECK(half_plain.ids.front() == 481);
    CHECK(std::count(half_plain.ids.begin(), half_plain.ids.end(), 482) == 0);
    check_parts(half_plain, text);
    // A name that overlaps a plain range is plain text.
    const fsdp::TextRange inside{3, 4};
    CHECK(chatml->encode_marked("<|im_end|>", {&inside, 1}).ids == chatml->encode("<|im_end|>"));
    CHECK(chatml->named_id("<|im_end|>") == 482);
    CHECK(!chatml->named_id("<|im_en"));
    CHECK(!chatml->named_id(""));
    const auto gpt2 = fsdp::make_gpt2_tokenizer();
    CHECK(gpt2->encode_marked("a<|endoftext|>", {}).ids == MarkedIds{64, 50256});
  }

  TEST_CASE("SentencePiece and its tokenizer.json agree, turn by turn") {
    const auto model = fsdp::make_sentencepiece_tokenizer(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model");
    const auto json = opened("llama2");
    for (const std::string text :
         {"<s>[INST] Hi [/INST] e2e4 </s><s>[INST]", "a</s></s> b", "</s>", " <s>", "<unk>x"}) {
      CAPTURE(text);
      CHECK(model->encode_marked(text, {}).ids == json->encode_marked(text, {}).ids);
    }
    CHECK(model->encode_marked("<s>a", {}).ids.front() == 1);
    const auto parts = model->encode_marked("a</s>b", {}).parts;
    CHECK(parts.back().begin == 5);
    CHECK(parts.back().end == 6);
  }

  TEST_CASE("composed texts: a part is what was composed together") {
    const std::string text = "xe\u0301y";
    const auto sources = fsdp::nfc_sources(text, fsdp::to_nfc(text));
    REQUIRE(sources.size() == 4);  // x, two bytes, y
    CHECK(sources[0].end == 1);
    CHECK(sources[1].begin == 1);
    CHECK(sources[1].end == 4);
    CHECK(sources[2].end == 4);
    CHECK(sources[3].begin == 4);
    const auto encoded = opened("chatml")->encode_marked(text, {});
    CHECK(encoded.ids == opened("chatml")->encode(text));
    CHECK(encoded.parts.back().end == text.size());
    // Marks that change places: both come from both.
    const std::string turned = "q\u0307\u0323";
    for (const auto& source : fsdp::nfc_sources(turned, fsdp::to_nfc(turned))) CHECK(source.end <= turned.size());
    // A long sequence of marks is normalized at once, and the text before and after it keeps its place.
    std::string marks;
    for (int i = 0; i < 200'000; ++i) marks += "\u0323";
    const auto many = "x a\u0301" + marks + " y";
    const auto composed = fsdp::to_nfc(many);
    const auto places = fsdp::nfc_sources(many, composed);
    REQUIRE(places.size() == composed.size());
    CHECK(places[1].end == 2);
    CHECK(places[2].begin == 2);
    CHECK(places.back().begin == many.size() - 1);
  }

  TEST_CASE("a special token takes the white space beside it along") {
    const fsdp::test::TempDir dir;
    auto json = fsdp::read_text_file(kChat + "chatml/tokenizer.json");
    const std::string before = R"("lstrip": false)";
    const auto at = json.find(before, json.find("<|im_end|>"));
    REQUIRE(at != std::string::npos);
    fsdp::replace_file(dir / "tokenizer.json", json.replace(at, before.size(), R"("lstrip": true)"));
    const auto tokenizer = fsdp::open_tokenizer(dir.path().string());
    const std::string text = "a  <|im_end|>b";
    const auto encoded = tokenizer->encode_marked(text, {});
    REQUIRE(encoded.ids.size() == 3);
    CHECK(encoded.ids[1] == 482);
    CHECK(encoded.parts[1].begin == 1);
    check_parts(encoded, text);
  }
}
