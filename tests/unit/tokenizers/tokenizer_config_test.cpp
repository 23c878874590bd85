// Configuration files beside a vocabulary. Ids come from AutoTokenizer of transformers 5.23, unless stated otherwise.
#include "lib/tokenizers/files/tokenizer_config.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/tokenizers/tokenizer_json_samples.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

/// A directory that holds a vocabulary and further files.
struct Beside {
  fsdp::test::TempDir dir;

  /// Writes GPT-2's vocabulary as tokenizer.json, with two more tokens: <|x|> 50257 and, special, <|y|> 50258.
  void json() const {
    auto json = fsdp::test::gpt2_json();
    json["added_tokens"].push_back({{"id", 50257}, {"content", "<|x|>"}, {"special", false}, {"normalized", false}});
    json["added_tokens"].push_back({{"id", 50258}, {"content", "<|y|>"}, {"special", true}, {"normalized", false}});
    fsdp::replace_file(dir / "tokenizer.json", json.dump());
  }
  void vocab() const {
    for (const char* name : {"vocab.json", "merges.txt"})
      std::filesystem::copy(FSDP_TEST_DATA_DIR "/gpt2/" + std::string(name), dir / name);
  }
  void model() const { std::filesystem::copy(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model", dir / "tokenizer.model"); }
  void config(const std::string& text) const { fsdp::replace_file(dir / "tokenizer_config.json", text); }
  void map(const std::string& text) const { fsdp::replace_file(dir / "special_tokens_map.json", text); }
  std::shared_ptr<const fsdp::Tokenizer> open() const { return fsdp::open_tokenizer(dir.path().string()); }
  Ids marked(const std::string& text) const { return open()->encode_marked(text, {}).ids; }
  void refused(const std::string& words) const {
    CHECK_THROWS_WITH_AS(open(), doctest::Contains(words.c_str()), fsdp::FormatError);
  }
};

}  // namespace

TEST_SUITE("tokenizer/tokenizer_config") {
  TEST_CASE("special_tokens_map.json names the marks, over the config's, but where there is added_tokens_decoder") {
    const Beside files;
    files.json();
    files.map(R"({"eos_token": {"content": "<|y|>", "lstrip": false}})");
    CHECK(files.open()->eos_id() == 50258);
    files.config(R"({"eos_token": "<|x|>"})");
    CHECK(files.open()->eos_id() == 50258);
    files.config(R"({"eos_token": "<|x|>", "added_tokens_decoder": {}})");
    CHECK(files.open()->eos_id() == 50257);
  }

  TEST_CASE("tokens that are named and not in the vocabulary have the next ids") {
    const Beside files;
    files.json();
    for (const char* config :
         {R"({"pad_token": "<|t|>"})", R"({"additional_special_tokens": ["<|t|>"]})",
          R"({"extra_special_tokens": ["<|t|>"]})", R"({"extra_special_tokens": {"tool_token": "<|t|>"}})",
          R"({"image_token": "<|t|>"})", R"({"model_specific_special_tokens": {"tool_token": "<|t|>"}})",
          R"({"additional_special_tokens": [{"content": "<|t|>", "special": true}]})"}) {
      CAPTURE(config);
      files.config(config);
      CHECK(files.open()->vocab_size() == 50260);
      CHECK(files.open()->required_rows() == 50259);
      CHECK(files.marked("a<|t|>a") == Ids{64, 50259, 64});
      CHECK(files.open()->encode("<|t|>").size() > 1);
    }
    files.config("{}");
    files.map(R"({"additional_special_tokens": ["<|t|>"]})");
    CHECK(files.marked("a<|t|>a") == Ids{64, 50259, 64});
    // Ids follow the order of the file, not of the alphabet.
    files.config(R"({"z_token": "<|z|>", "b_token": "<|b|>", "pad_token": "<|pad|>", "added_tokens_decoder": {}})");
    CHECK(files.marked("<|pad|><|z|><|b|>") == Ids{50259, 50260, 50261});
  }

  TEST_CASE("a model needs no row for a name that only the config has, as CodeLlama's fill_token") {
    const Beside files;
    files.model();
    const auto rows = files.open()->required_rows();
    CHECK(rows == files.open()->vocab_size());
    files.config(R"({"tokenizer_class": "CodeLlamaTokenizer", "fill_token": "<FILL_ME>"})");
    CHECK(files.open()->vocab_size() == rows + 1);
    CHECK(files.open()->required_rows() == rows);
    files.config(R"({"added_tokens_decoder": {")" + std::to_string(rows) + R"(": {"content": "<|t|>"}}})");
    CHECK(files.open()->required_rows() == rows + 1);
  }

  TEST_CASE("a piece that is named as special is the token, and stands for the piece's bytes") {
    const Beside files;
    files.json();
    files.config(R"({"extra_special_tokens": ["the", "Ġcat"]})");
    CHECK(files.marked("a the cat") == Ids{64, 220, 1169, 3797});
    CHECK(files.open()->decode(Ids{3797}) == " cat");
    CHECK(files.open()->vocab_size() == 50259);
  }

  TEST_CASE("added_tokens_decoder's flags count, and its ids must be the library's") {
    const Beside files;
    files.json();
    files.config(R"({"added_tokens_decoder": {
        "50257": {"content": "<|x|>", "special": true, "lstrip": true, "rstrip": true, "normalized": false},
        "50258": {"content": "<|y|>", "special": false, "normalized": false}}})");
    CHECK(files.marked("a <|x|> a") == Ids{64, 50257, 64});
    CHECK(files.open()->encode("<|x|>").size() > 1);
    CHECK(files.open()->encode("<|y|>").size() > 1);
    CHECK(files.marked("a<|y|>a") == Ids{64, 50258, 64});
    files.config(R"({"added_tokens_decoder": {"50257": {"content": "<|z|>"}}})");
    files.refused("tokenizer_config.json: added token '<|z|>' has id 50257, but the tokenizers library gives it 50259");
  }

  TEST_CASE("added_tokens.json: what is not named as special is found in texts") {
    const Beside files;
    files.json();
    fsdp::replace_file(files.dir / "added_tokens.json", R"({"<|t|>": 50259, "<|p|>": 50260})");
    files.config(R"({"pad_token": "<|p|>"})");
    CHECK(files.open()->encode("a<|t|>a") == Ids{64, 50259, 64});
    CHECK(files.open()->encode("<|p|>").size() > 1);
    CHECK(files.marked("<|p|>") == Ids{50260});
  }

  TEST_CASE("tokenizer.json: an id that the library would not give is refused") {
    const Beside files;
    auto json = fsdp::test::gpt2_json();
    json["added_tokens"].push_back({{"id", 60000}, {"content", "<|x|>"}});
    fsdp::replace_file(files.dir / "tokenizer.json", json.dump());
    files.refused("tokenizer.json: added token '<|x|>' has id 60000, but the tokenizers library gives it 50257");
  }

  TEST_CASE("vocab.json and merges.txt: by the class that is named") {
    const Beside files;
    files.vocab();
    const auto plain = files.open()->encode("e\u0301 it's 1234");
    for (const char* name : {"GPT2Tokenizer", "GPT2TokenizerFast"}) {
      files.config(std::string(R"({"tokenizer_class": ")") + name + "\"}");
      CHECK(files.open()->encode("e\u0301 it's 1234") == plain);
    }
    // Digits one by one, and letters composed.
    files.config(R"({"tokenizer_class": "Qwen2Tokenizer"})");
    CHECK(files.open()->encode("e\u0301 1234") == Ids{2634, 220, 16, 17, 18, 19});
    files.config(R"({"tokenizer_class": "GPTNeoXTokenizerFast"})");
    CHECK(files.open()->encode("e\u0301 1234") == Ids{2634, 1105, 2682});
    for (const char* name : {"RobertaTokenizer", "CLIPTokenizer", "LlamaTokenizer", "PreTrainedTokenizerFast"}) {
      files.config(std::string(R"({"tokenizer_class": ")") + name + "\"}");
      files.refused("tokenizer_config.json: tokenizer_class: is " + std::string(name));
    }
    files.config(R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})");
    files.refused("tokenizer_config.json: add_prefix_space: is true");
    std::filesystem::remove(files.dir / "tokenizer_config.json");
    fsdp::replace_file(files.dir / "config.json",
                       R"({"model_type": "roberta", "tokenizer_class": "RobertaTokenizer"})");
    files.refused("tokenizer_class: is RobertaTokenizer");
  }

  TEST_CASE("tokenizer.json: add_prefix_space of a class that makes the step itself") {
    const Beside files;
    files.json();
    const auto plain = files.open()->encode("the");
    files.config(R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})");
    files.refused("add_prefix_space: is true");
    files.config(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true})");
    CHECK(files.open()->encode("the") == plain);  // the file's own flag decides
    auto json = fsdp::test::gpt2_json();
    json["pre_tokenizer"]["add_prefix_space"] = true;
    fsdp::replace_file(files.dir / "tokenizer.json", json.dump());
    files.refused("tokenizer.json: pre_tokenizer: add_prefix_space is not supported");
    files.config(R"({"tokenizer_class": "GPT2Tokenizer"})");
    CHECK(files.open()->encode("the") == plain);
  }

  TEST_CASE("tokenizer.model: LlamaTokenizer's legacy says where spaces are put") {
    const Beside files;
    files.model();
    const auto texts = [&](const char* more) {
      files.config(std::string(R"({"tokenizer_class": "LlamaTokenizer")") + more + "}");
      std::vector<Ids> all;
      for (const char* text : {"the<|x|>the", " the", "<|x|> the"}) all.push_back(files.open()->encode(text));
      return all;
    };
    const std::string decoder = R"(, "added_tokens_decoder": {"1000": {"content": "<|x|>", "normalized": false}})";
    const std::vector<Ids> first = {{281, 1000, 402, 930}, {281}, {1000, 281}};
    CHECK(texts((decoder + R"(, "legacy": false)").c_str()) == first);
    CHECK(texts(decoder.c_str()) == first);
    CHECK(texts((decoder + R"(, "legacy": true)").c_str()) == std::vector<Ids>{{281, 1000, 281}, {281}, {1000, 281}});
    // Without any of them the ids are those of the sentencepiece package, which puts a space before each text.
    CHECK(texts("")[1] == Ids{929, 281});
  }

  TEST_CASE("what the config says and is not supported is refused by its key") {
    const Beside files;
    files.json();
    files.config(R"({"split_special_tokens": true})");
    files.refused("tokenizer_config.json: split_special_tokens: is true");
    files.config(R"({"pad_token": 3})");
    files.refused("tokenizer_config.json: pad_token: is no text");
    files.config(R"({"extra_special_tokens": "<|t|>"})");
    files.refused("tokenizer_config.json: extra_special_tokens: is no list");
  }
}
