#include "lib/tokenizers/vocabulary/nfc.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

std::string times(const std::string& text, std::size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_SUITE("tokenizer/nfc") {
  TEST_CASE("to_nfc: characters are composed, marks ordered, what is no UTF-8 stays") {
    CHECK(fsdp::to_nfc("e\u0301 plain \u00e9") == "\u00e9 plain \u00e9");
    CHECK(fsdp::to_nfc("a\u0301\u0323") == "\u1ea1\u0301");
    CHECK(fsdp::to_nfc("\u2126\u212b\u0958") == "\u03a9\u00c5\u0915\u093c");
    CHECK(fsdp::to_nfc("\u1112\u1161\u11ab") == "\ud55c");
    CHECK(fsdp::to_nfc("\u0301\u0323x") == "\u0323\u0301x");
    CHECK(fsdp::to_nfc("\u0344") == "\u0308\u0301");
    // Stands for U+0F71 and U+0F72, which are marks of two classes.
    CHECK(fsdp::to_nfc("\u0f40\u0f73\u0f73") == "\u0f40\u0f71\u0f71\u0f72\u0f72");
    CHECK(fsdp::to_nfc("e\u0301\xff") == "e\u0301\xff");
    CHECK(fsdp::to_nfc(std::string("\0e\u0301\0", 5)) == std::string("\0\u00e9\0", 4));
  }

  TEST_CASE("to_nfc: marks and compositions that came after Unicode 9 stay, as in Hugging Face's tokenizers") {
    const auto truth = nlohmann::json::parse(std::ifstream(FSDP_FIXTURE_DIR "/tokenizers/unicode.json"));
    CHECK(truth["nfc"].size() > 500);
    for (const auto& one : truth["nfc"]) {
      const auto& text = one[0].get_ref<const std::string&>();
      CAPTURE(text);
      CHECK(fsdp::to_nfc(text) == one[1]);
      CHECK(fsdp::nfc_sources(text, fsdp::to_nfc(text)).size() == fsdp::to_nfc(text).size());
    }
  }

  TEST_CASE("to_nfc: the time does not grow with the square of a run of marks") {
    constexpr std::size_t kMarks = 200000;  // by swapping neighbours, minutes
    CHECK(fsdp::to_nfc("a" + times("\u0301\u0323", kMarks)) ==
          "\u1ea1" + times("\u0323", kMarks - 1) + times("\u0301", kMarks));
    CHECK(fsdp::to_nfc(times("\u0f73", kMarks)) == times("\u0f71", kMarks) + times("\u0f72", kMarks));
  }

  TEST_CASE("nfc_sources: marks of one run come from all of it, however many they are") {
    const std::string text = "xe\u0301" + times("\u0323\u0f73", 50000) + "y";
    const auto composed = fsdp::to_nfc(text);
    const auto sources = fsdp::nfc_sources(text, composed);
    REQUIRE(sources.size() == composed.size());
    CHECK(sources.front().end == 1);
    CHECK(sources[1].begin == 1);
    CHECK(sources[sources.size() - 2].end == text.size() - 1);
    CHECK(sources.back().begin == text.size() - 1);
  }
}
