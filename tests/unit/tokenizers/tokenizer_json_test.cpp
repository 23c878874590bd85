#include "lib/tokenizers/files/tokenizer_json.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/bpe/byte_level_bpe.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/tokenizers/random_texts.hpp"
#include "tests/unit/tokenizers/tokenizer_json_samples.hpp"

namespace {

using fsdp::test::Json;
using Ids = std::vector<std::int32_t>;

std::unique_ptr<fsdp::Tokenizer> made(const Json& json, const fsdp::TokenizerConfig& config = {}) {
  const fsdp::test::TempDir dir;
  fsdp::replace_file(dir / "tokenizer.json", json.dump());
  return fsdp::make_tokenizer_json(dir / "tokenizer.json", config);
}

const fsdp::Tokenizer& gpt2() {
  static const auto tokenizer = made(fsdp::test::gpt2_json());
  return *tokenizer;
}

const fsdp::Tokenizer& llama() {
  static const auto tokenizer = made(fsdp::test::llama_json());
  return *tokenizer;
}

Json split(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

}  // namespace

TEST_SUITE("tokenizer/tokenizer_json") {
  TEST_CASE("encode: both kinds equal the reference on every text, and decode back") {
    const auto cases = Json::parse(fsdp::read_text_file(FSDP_FIXTURE_DIR "/tokenizers/expected.json"));
    for (const auto& expected : cases) {
      const auto text = expected["text"].get<std::string>();
      CAPTURE(text);
      CHECK(gpt2().encode(text) == expected["gpt2"].get<Ids>());
      CHECK(gpt2().decode(gpt2().encode(text)) == text);
      CHECK(llama().encode(text) == expected["sentencepiece"].get<Ids>());
      CHECK(llama().decode(llama().encode(text)) == text);
    }
  }

  TEST_CASE("decode: gives back random Unicode text and random bytes") {
    std::mt19937 random(9);
    for (int round = 0; round < 200; ++round) {
      const std::string text = fsdp::test::random_text(random, 60), bytes = fsdp::test::random_bytes_text(random, 60);
      for (const auto* tokenizer : {&gpt2(), &llama()}) {
        CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
        CHECK(tokenizer->decode(tokenizer->encode(bytes)) == bytes);
      }
    }
  }

  TEST_CASE("encode_document: the post-processor's marks") {
    CHECK(llama().encode_document("") == Ids{1});
    CHECK(llama().bos_id() == 1);
    CHECK(llama().eos_id() == 2);
    CHECK(llama().decode(llama().encode_document("to be")) == "to be");
    CHECK(gpt2().encode_document("a") == gpt2().encode("a"));
    CHECK(gpt2().eos_id() == 50256);

    auto json = fsdp::test::llama_json();
    auto& single = json["post_processor"]["single"];
    single.push_back(single[0]);
    CHECK(made(json)->encode_document("") == Ids{1, 1});
  }

  TEST_CASE("infill_ids: by the names of the pieces") {
    REQUIRE(llama().infill_ids());
    CHECK(llama().infill_ids()->middle == 5);
    CHECK(llama().encode_infill("", "").size() == 4);
    CHECK_FALSE(gpt2().infill_ids());
  }

  TEST_CASE("added tokens: they count, decode to their names, and are found unless they are special") {
    auto json = fsdp::test::llama_json();
    json["added_tokens"].push_back({{"id", 1000}, {"content", "<special>"}, {"special", true}});
    json["added_tokens"].push_back({{"id", 1001}, {"content", "<found>"}, {"special", false}, {"normalized", false}});
    fsdp::TokenizerConfig config;
    config.added_tokens = {{1002, "<config>"}};
    const auto tokenizer = made(json, config);

    CHECK(tokenizer->vocab_size() == 1003);
    CHECK(tokenizer->decode(Ids{1000, 1001, 1002}) == "<special><found><config>");
    CHECK(tokenizer->encode("<special>") == llama().encode("<special>"));
    auto expected = llama().encode("a");
    expected.push_back(1001);
    for (const auto id : llama().encode("b")) expected.push_back(id);
    CHECK(tokenizer->encode("a<found>b") == expected);
  }

  TEST_CASE("ignore_merges: a word that is a piece is it, whatever the merges make") {
    auto json = fsdp::test::gpt2_json();
    json["model"]["merges"] = Json::array();
    CHECK(made(json)->encode(" the").size() == 4);
    json["model"]["ignore_merges"] = true;
    CHECK(made(json)->encode(" the") == gpt2().encode(" the"));
    CHECK(made(json)->encode(" thf").size() == 4);
  }

  TEST_CASE("ignore_merges: no text is a piece outside GPT-2's alphabet") {
    auto json = fsdp::test::gpt2_json();
    json["model"]["vocab"]["\u65e5\u672c"] = 50257;  // its words are spelled "æĹ¥æľ¬"
    json["model"]["merges"].push_back({"\u65e5", "\u672c"});
    json["model"]["vocab"]["\u65e5"] = 50258;
    json["model"]["vocab"]["\u672c"] = 50259;
    json["model"]["ignore_merges"] = true;
    const auto tokenizer = made(json);
    CHECK(tokenizer->encode("\u65e5\u672c") == gpt2().encode("\u65e5\u672c"));
    CHECK(tokenizer->decode(Ids{50257}) == "\u65e5\u672c");
  }

  TEST_CASE("pre_tokenizer: Llama 3's split keeps at most three digits together") {
    auto json = fsdp::test::gpt2_json();
    const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split("\\p{N}{1,3}"), bytes}}};
    CHECK(made(json)->encode("1000").size() == 2);
    CHECK(gpt2().encode("1000").size() == 1);
  }

  TEST_CASE("make_tokenizer_json: pieces that join words keep the whole text one word") {
    auto json = fsdp::test::llama_json();
    json["model"]["vocab"]["e▁t"] = 1000;
    json["model"]["merges"].insert(json["model"]["merges"].begin(), Json{"e", "▁t"});  // once there is "▁t"
    const auto tokenizer = made(json);
    const auto ids = tokenizer->encode("be to");
    CHECK(std::find(ids.begin(), ids.end(), 1000) != ids.end());
    CHECK(tokenizer->decode(ids) == "be to");
  }
}
