#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/tokenizer_json.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/tokenizers/tokenizer_json_samples.hpp"

namespace {

using fsdp::test::Json;

/// A vocabulary that has only single bytes, so that parsing is fast.
Json small_byte_level() {
  auto json = fsdp::test::gpt2_json();
  Json vocab = Json::object();
  for (const auto& [piece, id] : json["model"]["vocab"].items()) {
    if (id.get<int>() < 256) vocab[piece] = id;
  }
  json["model"]["vocab"] = std::move(vocab);
  json["model"]["merges"] = Json::array();
  json["added_tokens"] = Json::array();
  return json;
}

Json small_llama() {
  static const Json json = fsdp::test::llama_json();
  return json;
}

void check_refused(const std::string& bytes, const std::string& message) {
  const fsdp::test::TempDir dir;
  fsdp::replace_file(dir / "tokenizer.json", bytes);
  CAPTURE(message);
  CHECK_THROWS_WITH_AS(fsdp::make_tokenizer_json(dir / "tokenizer.json"), doctest::Contains(message.c_str()),
                       fsdp::FormatError);
}

void check_refused(Json json, const std::function<void(Json&)>& damage, const std::string& message) {
  damage(json);
  check_refused(json.dump(), "tokenizer.json: " + message);
}

Json sequence(const char* list, Json steps) { return {{"type", "Sequence"}, {list, std::move(steps)}}; }

}  // namespace

TEST_SUITE("tokenizer/tokenizer_json_errors") {
  TEST_CASE("make_tokenizer_json: files that are no such JSON") {
    check_refused("", "tokenizer.json: at byte 1: is no JSON");
    check_refused("{\"model\": ", "is no JSON");
    check_refused("[1]", "is no JSON object");
    check_refused("{\"a\": 1e999}", "tokenizer.json: is no JSON");
    check_refused("{\"a\": \"\xFF\"}", "is no JSON");
    check_refused("{\"a\":" + std::string(2000000, '['), "is nested deeper than 64 values");
    check_refused("{}", "tokenizer.json: model: is missing");
  }

  TEST_CASE("make_tokenizer_json: what is not supported is named") {
    const auto byte_level = small_byte_level();
    const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}};
    check_refused(
        byte_level, [](Json& j) { j["version"] = "2.0"; }, "version: is 2.0, expected 1.0");
    check_refused(
        byte_level, [](Json& j) { j["special_merges"] = Json::array(); },
        "special_merges: is not known: is the file of a newer version of tokenizers?");
    check_refused(
        byte_level, [](Json& j) { j["model"]["merge_dropout"] = 0.1; },
        "model: merge_dropout: is not known: is the file of a newer version of tokenizers?");
    check_refused(
        byte_level, [](Json& j) { j["model"]["type"] = "WordPiece"; }, "model: type WordPiece is not supported");
    check_refused(
        byte_level, [](Json& j) { j["model"]["type"] = "Unigram"; }, "model: type Unigram is not supported");
    check_refused(
        byte_level, [](Json& j) { j["model"]["dropout"] = 0.1; }, "model: dropout: is not supported");
    check_refused(
        byte_level, [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
        "model: end_of_word_suffix: is not supported");
    check_refused(
        byte_level,
        [](Json& j) {
          j["normalizer"] = {{"type", "NFKC"}};
        },
        "normalizer: type NFKC is not");
    check_refused(
        byte_level, [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
        "pre_tokenizer: add_prefix_space is not supported");
    check_refused(
        byte_level,
        [](Json& j) {
          j["pre_tokenizer"] = {{"type", "Whitespace"}};
        },
        "pre_tokenizer: does not end in ByteLevel");
    check_refused(
        byte_level,
        [&](Json& j) {
          j["pre_tokenizer"] = sequence("pretokenizers", {{{"type", "UnicodeScripts"}}, bytes});
        },
        "pre_tokenizer: pretokenizers[0]: type UnicodeScripts is not supported");
    const auto split = [&](const char* behavior, Json pattern) {
      return [=](Json& j) {
        const Json step{{"type", "Split"}, {"behavior", behavior}, {"pattern", pattern}};
        j["pre_tokenizer"] = sequence("pretokenizers", {step, bytes});
      };
    };
    check_refused(byte_level, split("Contiguous", {{"Regex", "a"}}), "pre_tokenizer: pretokenizers[0]: behavior: is");
    check_refused(byte_level, split("Isolated", {{"Regex", "\\w"}}), "pre_tokenizer: pretokenizers[0]: pattern: '\\w'");
    check_refused(byte_level, split("Isolated", {{"Regex", "a)"}}),
                  "pre_tokenizer: pretokenizers[0]: pattern: PCRE2 refuses");
    check_refused(
        byte_level,
        [](Json& j) {
          j["post_processor"] = {{"type", "BertProcessing"}};
        },
        "post_processor: type BertProcessing is not supported");
    const auto llama = small_llama();
    check_refused(
        llama, [](Json& j) { j["normalizer"]["normalizers"][0]["prepend"] = "_"; },
        "normalizer: normalizers[0]: is not supported");
    check_refused(
        llama, [](Json& j) { j["normalizer"] = nullptr; }, "normalizer: does not replace spaces");
    check_refused(
        llama,
        [](Json& j) {
          j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}};
        },
        "pre_tokenizer: replacement: is not U+2581");
    check_refused(
        llama, [](Json& j) { j["model"]["ignore_merges"] = true; }, "model: ignore_merges with");
    check_refused(
        llama, [](Json& j) { j["model"]["byte_fallback"] = false; }, "pre_tokenizer: does not end in ByteLevel");
  }

  TEST_CASE("make_tokenizer_json: ids, merges and marks that cannot be") {
    const auto byte_level = small_byte_level();
    const auto vocab = [&](const char* piece, Json id, const std::string& message) {
      check_refused(
          byte_level, [&](Json& j) { j["model"]["vocab"][piece] = id; }, "model: vocab: " + message);
    };
    vocab("x1", -1, "'x1': has id -1");
    vocab("x1", 4000000000000, "'x1': has id 4000000000000");
    vocab("x1", 1e3, "'x1': is no integer");
    vocab("x1", 18446744073709551615u, "'x1': is no integer");
    vocab("zz", 7, "'zz': has id 7 as '");
    vocab("", 256, "'': is empty");
    check_refused(
        byte_level, [](Json& j) { j["model"]["vocab"].erase("a"); }, "has no piece for byte 97");
    check_refused(
        byte_level, [](Json& j) { j["model"]["vocab"] = 3; }, "model: vocab: is no object");
    const auto merges = [&](Json merge, const std::string& message) {
      check_refused(
          byte_level, [&](Json& j) { j["model"]["merges"] = Json::array({merge}); }, "model: " + message);
    };
    merges("a b", "merge of 'a' and 'b' uses a piece that the vocabulary does not have");
    merges("a b c", "merges[0]: is 'a b c', expected two pieces");
    merges(Json{"a"}, "merges[0]: has 1 pieces");
    merges(Json{"a", 3}, "merges[0][1]: is no text");
    merges(3, "merges[0]: is no list");
    const auto llama = small_llama();
    check_refused(
        llama, [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {1000}; },
        "post_processor: adds id 1000, which is not in the vocabulary");
    check_refused(
        llama, [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {-1}; },
        "post_processor: special_tokens: <s>: ids[0]: is no token id");
    check_refused(
        llama, [](Json& j) { j["post_processor"]["special_tokens"].clear(); },
        "post_processor: special_tokens: <s>: is missing");
    check_refused(
        llama, [](Json& j) { j["post_processor"]["single"].erase(1); }, "post_processor: single: leaves out the text");
    check_refused(
        llama, [](Json& j) { j["model"]["vocab"].erase("<0x41>"); }, "");
    check_refused(
        llama, [](Json& j) { j["added_tokens"][2]["id"] = 1; }, "added_tokens[2]: has an id that another");
    check_refused(
        llama, [](Json& j) { j["added_tokens"][2]["id"] = 1 << 30; }, "added token '</s>' has id 1073741824");
  }

  TEST_CASE("make_tokenizer_json: damaged files are refused or work") {
    const fsdp::test::TempDir dir;
    auto json = small_llama();
    std::mt19937 random(4);
    int refused = 0;
    for (int round = 0; round < 150; ++round) {
      std::string bytes = json.dump();
      for (unsigned i = 0; i < 1 + random() % 3; ++i)
        bytes[random() % bytes.size()] = static_cast<char>(random() % 128);
      fsdp::replace_file(dir / "tokenizer.json", bytes);
      try {
        const auto tokenizer = fsdp::make_tokenizer_json(dir / "tokenizer.json");
        for (const auto id : tokenizer->encode("to be e2e4 \xFF")) CHECK(id < tokenizer->vocab_size());
      } catch (const fsdp::FormatError&) {
        ++refused;
      }
    }
    CHECK(refused > 20);
  }
}
