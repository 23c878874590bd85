// Against Hugging Face's tokenizers: tests/fixtures/families/tokenizers (expected.json there says which version).
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/tokenizer/nfc.hpp"
#include "lib/tokenizer/open_tokenizer.hpp"

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
