// Against Hugging Face's tokenizers: tests/fixtures/families/tokenizers (expected.json there says which version).
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"
#include "lib/tokenizers/vocabulary/nfc.hpp"

using namespace fsdp;

TEST_SUITE("tokenizer/families") {
  TEST_CASE("ids of Qwen's, Llama 3's, Llama 2's and Gemma's kind of tokenizer.json") {
    const auto folder = std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / "tokenizers";
    const auto expected = nlohmann::json::parse(std::ifstream(folder / "expected.json")).at("cases");
    int compared = 0;
    for (const auto& [name, cases] : expected.items()) {
      const auto tokenizer = open_tokenizer((folder / name).string());
      for (const auto& one : cases) {
        const auto text = one.at("text").get<std::string>();
        CAPTURE(name);
        CAPTURE(text);
        CHECK(tokenizer->encode(text) == one.at("ids").get<std::vector<std::int32_t>>());
        CHECK(tokenizer->encode_document(text) == one.at("document").get<std::vector<std::int32_t>>());
        ++compared;
      }
    }
    CHECK(compared == 64);
  }

  TEST_CASE("random texts with added tokens in them, in the shapes of ten families' tokenizer.json") {
    const auto folder = std::filesystem::path(FSDP_FIXTURE_DIR) / "tokenizers" / "json";
    const auto expected = nlohmann::json::parse(std::ifstream(folder / "expected.json"));
    const auto texts = expected.at("texts").get<std::vector<std::string>>();
    REQUIRE(expected.at("models").size() == 10);
    for (const auto& [name, ids] : expected.at("models").items()) {
      const auto tokenizer = open_tokenizer((folder / name).string());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        CAPTURE(name);
        CAPTURE(texts[i]);
        CHECK(tokenizer->encode_marked(texts[i], {}).ids == ids[i].get<std::vector<std::int32_t>>());
        const TextRange all{0, texts[i].size()};
        CHECK(tokenizer->encode_marked(texts[i], {&all, 1}).ids == tokenizer->encode(texts[i]));
      }
    }
  }

  TEST_CASE("SentencePiece's normalizers: ids and decoded texts of the package") {
    const auto folder = std::filesystem::path(FSDP_FIXTURE_DIR) / "tokenizers" / "sentencepiece";
    const auto expected = nlohmann::json::parse(std::ifstream(folder / "expected.json"));
    const auto texts = expected.at("texts").get<std::vector<std::string>>();
    REQUIRE(expected.at("models").size() == 4);
    for (const auto& [name, cases] : expected.at("models").items()) {
      const auto tokenizer = make_sentencepiece_tokenizer(folder / (name + ".model"));
      CHECK(tokenizer->decode_one(tokenizer->bos_id().value()).empty());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        CAPTURE(name);
        CAPTURE(texts[i]);
        const auto ids = cases[i][0].get<std::vector<std::int32_t>>();
        CHECK(tokenizer->encode(texts[i]) == ids);
        CHECK(tokenizer->decode(ids) == cases[i][1].get<std::string>());
        const TextRange all{0, texts[i].size()};
        const auto marked = tokenizer->encode_marked(texts[i], {&all, 1});
        CHECK(marked.ids == ids);
        for (const auto& part : marked.parts) CHECK((part.begin <= part.end && part.end <= texts[i].size()));
      }
    }
  }

  TEST_CASE("an added token of tokenizer.model that is not special takes its white space from texts") {
    TokenizerConfig config;
    config.added_tokens = {{.id = 2, .text = "</s>", .special = false, .rstrip = true},
                           {.id = 1000, .text = "<|user|>", .rstrip = true}};
    const auto tokenizer = make_sentencepiece_tokenizer(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model", config);
    const auto with_mark = [&](std::int32_t id) {
      auto ids = tokenizer->encode("a");
      ids.push_back(id);
      const auto rest = tokenizer->encode("b");  // with a space of its own before it
      ids.insert(ids.end(), rest.begin(), rest.end());
      return ids;
    };
    CHECK(tokenizer->encode("a</s> \n b") == with_mark(2));
    CHECK(tokenizer->encode_marked("a<|user|>\nb", {}).ids == with_mark(1000));
    CHECK(tokenizer->encode("a<|user|>b").size() > 4);
  }

  TEST_CASE("to_nfc: composed canonically, in order of classes; other bytes stay") {
    CHECK(to_nfc("plain") == "plain");
    CHECK(to_nfc("e\u0301") == "\u00e9");
    CHECK(to_nfc("q\u0307\u0323") == "q\u0323\u0307");
    CHECK(to_nfc("\u1112\u1161\u11ab") == "\ud55c");
    CHECK(to_nfc("\ufb01") == "\ufb01");  // compatibility characters are others
    CHECK(to_nfc("\u2126") == "\u03a9");
    CHECK(to_nfc("\xff\xfe e\u0301") == "\xff\xfe e\u0301");
    CHECK(to_nfc(std::string_view("a\0e\u0301", 5)) == std::string("a\0\u00e9", 4));
  }
}
