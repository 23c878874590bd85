#include "lib/tokenizers/files/open_tokenizer.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/tokenizers/tokenizer_json_samples.hpp"

namespace {

using Ids = std::vector<std::int32_t>;
const std::string kModel = FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model";

}  // namespace

TEST_SUITE("tokenizer/open_tokenizer") {
  TEST_CASE("open_tokenizer: gpt2, then what the directory holds, tokenizer.json before the others") {
    const fsdp::test::TempDir dir;
    const auto kind = [&] { return fsdp::open_tokenizer(dir.path().string())->description(); };
    CHECK(fsdp::open_tokenizer("gpt2")->description() == "GPT-2, 50257 ids");
    CHECK_FALSE(fsdp::has_tokenizer(dir.path()));
    for (const char* name : {"vocab.json", "merges.txt"}) {
      CHECK_FALSE(fsdp::has_tokenizer(dir.path()));
      std::filesystem::copy(FSDP_TEST_DATA_DIR "/gpt2/" + std::string(name), dir / name);
    }
    CHECK(fsdp::has_tokenizer(dir.path()));
    CHECK(kind().starts_with("byte-level BPE of " + dir.path().string()));
    std::filesystem::copy(kModel, dir / "tokenizer.model");
    CHECK(kind() == "SentencePiece BPE of " + dir.path().string() + "/tokenizer.model, 1000 ids");
    fsdp::replace_file(dir / "tokenizer.json", fsdp::test::llama_json().dump());
    CHECK(kind().starts_with("BPE with byte fallback of " + dir.path().string()));
  }

  TEST_CASE("open_tokenizer: tokenizer.model stands for a tokenizer.json that is not supported") {
    const fsdp::test::TempDir dir;
    auto json = fsdp::test::llama_json();
    json["model"]["type"] = "Unigram";
    fsdp::replace_file(dir / "tokenizer.json", json.dump());
    const auto open = [&] { return fsdp::open_tokenizer(dir.path().string())->description(); };
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("tokenizer.json: model: type"), fsdp::FormatError);
    std::filesystem::copy(kModel, dir / "tokenizer.model");
    CHECK(open() == "SentencePiece BPE of " + dir.path().string() + "/tokenizer.model, 1000 ids");
    fsdp::replace_file(dir / "tokenizer.model", "no model");
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("tokenizer.json: model: type"), fsdp::FormatError);
    // A truncated tokenizer.json is an error: tokenizer.model beside it may give other ids.
    std::filesystem::copy(kModel, dir / "tokenizer.model", std::filesystem::copy_options::overwrite_existing);
    fsdp::replace_file(dir / "tokenizer.json", json.dump().substr(0, 500));
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("tokenizer.json"), fsdp::FormatError);
  }

  TEST_CASE("named_special_tokens: what the files say, then the SentencePiece model, as transformers 5.23 has them") {
    using Names = std::map<std::string, std::string>;
    const fsdp::test::TempDir dir;
    const auto names = [&] { return fsdp::named_special_tokens(dir.path().string()); };
    CHECK(fsdp::named_special_tokens("gpt2").empty());
    std::filesystem::copy(kModel, dir / "tokenizer.model");
    CHECK(names() == Names{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}});
    fsdp::replace_file(dir / "tokenizer_config.json", R"({"bos_token": null, "eos_token": "<e>", "pad_token": "<p>"})");
    CHECK(names() == Names{{"eos_token", "<e>"}, {"pad_token", "<p>"}, {"unk_token", "<unk>"}});
    fsdp::replace_file(dir / "tokenizer.json", fsdp::test::llama_json().dump());
    CHECK(names() == Names{{"eos_token", "<e>"}, {"pad_token", "<p>"}});
  }

  TEST_CASE("open_tokenizer: a mark that the config sets to null is none, and no usual name is taken for it") {
    for (const auto kind : {0, 1, 2, 3}) {
      const fsdp::test::TempDir dir;
      if (kind == 0) std::filesystem::copy(kModel, dir / "tokenizer.model");
      if (kind == 1) fsdp::replace_file(dir / "tokenizer.json", fsdp::test::llama_json().dump());
      if (kind == 2) fsdp::replace_file(dir / "tokenizer.json", fsdp::test::gpt2_json().dump());
      if (kind == 3) {
        for (const auto& [name, bytes] : fsdp::gpt2_tokenizer_files()) fsdp::replace_file(dir / name, bytes);
      }
      CAPTURE(kind);
      const auto guessed = fsdp::open_tokenizer(dir.path().string());
      CHECK(guessed->eos_id().has_value());
      fsdp::replace_file(dir / "tokenizer_config.json", R"({"bos_token": null, "eos_token": null})");
      const auto tokenizer = fsdp::open_tokenizer(dir.path().string());
      CHECK_FALSE(tokenizer->eos_id().has_value());
      CHECK_FALSE(tokenizer->bos_id().has_value());
    }
  }

  TEST_CASE("tokenizer_files: those that are there and that ids depend on, none for the built-in tokenizer") {
    const fsdp::test::TempDir dir;
    CHECK(fsdp::tokenizer_files(dir.path()).empty());
    CHECK(fsdp::tokenizer_files("gpt2").empty());
    for (const char* name : {"added_tokens.json", "tokenizer.json", "chat_template.jinja", "special_tokens_map.json"})
      fsdp::replace_file(dir / name, "{}");
    CHECK(fsdp::tokenizer_files(dir.path()) ==
          std::vector{dir / "tokenizer.json", dir / "special_tokens_map.json", dir / "added_tokens.json"});
  }

  TEST_CASE("encode_document: a stop is asked for inside a text, whatever the vocabulary") {
    const fsdp::test::TempDir model, json;
    std::filesystem::copy(kModel, model / "tokenizer.model");
    fsdp::replace_file(json / "tokenizer.json", fsdp::test::llama_json().dump());
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "to be ";
    for (const auto& name : {std::string("gpt2"), model.path().string(), json.path().string()}) {
      CAPTURE(name);
      const auto tokenizer = fsdp::open_tokenizer(name);
      int asked = 0;
      CHECK_THROWS_AS(tokenizer->encode_document(text, [&] { return ++asked == 3; }), fsdp::EncodingStopped);
      CHECK(asked == 3);
      CHECK(tokenizer->encode_document(text, [] { return false; }) == tokenizer->encode_document(text));
    }
  }

  TEST_CASE("open_tokenizer: a directory without one is named with what was looked for") {
    const fsdp::test::TempDir dir;
    CHECK_THROWS_WITH_AS(fsdp::open_tokenizer((dir / "none").string()),
                         doctest::Contains("none: holds no tokenizer; looked for tokenizer.json"), fsdp::IoError);
  }

  TEST_CASE("open_tokenizer: tokenizer_config.json and added_tokens.json beside the vocabulary hold") {
    const fsdp::test::TempDir dir;
    std::filesystem::copy(kModel, dir / "tokenizer.model");
    // With added_tokens_decoder beside it, this file does not count.
    fsdp::replace_file(dir / "added_tokens.json", R"({"<pad>": 1000, "<old>": 1001})");
    fsdp::replace_file(dir / "tokenizer_config.json", R"({"add_eos_token": true, "unknown_key": [1],
        "bos_token": {"__type": "AddedToken", "content": "</s>"}, "eos_token": "<new>", "add_prefix_space": null,
        "added_tokens_decoder": {"1000": {"content": "<new>", "special": true}}})");
    const auto tokenizer = fsdp::open_tokenizer(dir.path().string());

    CHECK(tokenizer->vocab_size() == 1001);
    CHECK(tokenizer->decode(Ids{1000}) == "<new>");
    CHECK(tokenizer->encode_document("") == Ids{2, 1000});
    fsdp::replace_file(dir / "tokenizer_config.json", R"({"add_prefix_space": false})");
    CHECK(fsdp::open_tokenizer(dir.path().string())->decode(Ids{1000, 1001}) == "<pad><old>");
    CHECK(fsdp::open_tokenizer(dir.path().string())->encode("1b").size() == 2);
    CHECK(tokenizer->encode("1b").size() == 3);
  }

  TEST_CASE("open_tokenizer: what is wrong beside the vocabulary is named") {
    const fsdp::test::TempDir dir;
    std::filesystem::copy(kModel, dir / "tokenizer.model");
    const auto refused = [&](const char* file, const char* text, const char* message) {
      fsdp::replace_file(dir / file, text);
      CHECK_THROWS_WITH_AS(fsdp::open_tokenizer(dir.path().string()), doctest::Contains(message), fsdp::FormatError);
      std::filesystem::remove(dir / file);
    };
    refused("tokenizer_config.json", "{", "tokenizer_config.json: at byte 2: is no JSON");
    refused("tokenizer_config.json", R"({"add_bos_token": 1})", "add_bos_token: is neither true nor false");
    refused("tokenizer_config.json", R"({"bos_token": {}})", "bos_token: content: is missing");
    refused("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
            "added_tokens_decoder: x: is not named by a token id");
    refused("tokenizer_config.json", R"({"added_tokens_decoder": {"-5": {"content": "a"}}})", "-5: has id -5");
    refused("tokenizer_config.json", R"({"added_tokens_decoder": {"99999999999": {"content": "a"}}})",
            "is not named by a token id");
    refused("tokenizer_config.json", R"({"added_tokens_decoder": {"900000": {"content": "a"}}})",
            "tokenizer_config.json: added token 'a' has id 900000");
    refused("added_tokens.json", R"({"a": 1000, "b": 1000})", "b: has id 1000 as 'a' has");
    refused("added_tokens.json", R"({"a": "x"})", "a: is no integer");
  }
}
