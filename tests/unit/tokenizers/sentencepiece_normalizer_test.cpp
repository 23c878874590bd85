#include <doctest/doctest.h>

#include <random>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"

namespace {

fsdp::NormalizerSpec spec_of(const std::string& name) {
  const std::string file = FSDP_FIXTURE_DIR "/tokenizers/sentencepiece/" + name + ".model";
  return fsdp::parse_sentencepiece_model(fsdp::read_text_file(file), file).normalizer;
}

}  // namespace

TEST_SUITE("tokenizer/sentencepiece_normalizer") {
  TEST_CASE("normalize: rules, spaces, and where each byte comes from") {
    const fsdp::SentencePieceNormalizer normalizer(spec_of("nmt_nfkc"), {"\u2460x"}, "FILE");
    const std::string text = "  \uff21\u3000 \u2460\u2460x ";
    const auto normalized = normalizer.normalize(text, true);
    CHECK(normalized.text == "\u2581A\u25811\u2460x");
    REQUIRE(normalized.origins.size() == normalized.text.size() + 1);
    CHECK(normalized.origins[0] == 2);
    CHECK(normalized.origins[3] == 2);  // A
    CHECK(normalized.origins[normalized.text.size()] == text.size());
    for (std::size_t i = 0; i < normalized.text.size(); ++i) CHECK(normalized.origins[i] <= normalized.origins[i + 1]);
    CHECK(normalizer.normalized_text(text, true) == normalized.text);
    CHECK(normalizer.normalize("a", false).text == "a");
    CHECK(normalizer.normalize("  ", true).text.empty());
    CHECK(normalizer.normalize("\xff \uff21", true).text ==
          "\xff\u2581"
          "A");  // bytes that are no UTF-8 stay
  }

  TEST_CASE("TextPlaces: places beyond 4 GiB in texts that have them") {
    constexpr std::size_t kFar = std::size_t{5} << 30;
    for (const std::size_t most : {std::size_t{100}, kFar}) {
      fsdp::TextPlaces places(most);
      places.add(7, 3);
      places.add(most);
      CHECK(places.size() == 4);
      CHECK(places[2] == 7);
      CHECK(places[3] == most);
      places.resize(1);
      CHECK(places.size() == 1);
      CHECK(places[0] == 7);
    }
  }

  TEST_CASE("CharacterMap: damaged maps are refused or lead nowhere outside") {
    const auto good = spec_of("few_rules").character_map;
    CHECK(fsdp::CharacterMap(good, "FILE").find("\ufb01x").result == "fi");
    CHECK(fsdp::CharacterMap(good, "FILE").find("\uff21\uff21").result == "A");  // the longest
    CHECK(fsdp::CharacterMap(good, "FILE").find("x").length == 0);
    std::mt19937 random(4);
    int refused = 0, loaded = 0;
    for (int round = 0; round < 300; ++round) {
      auto bytes = good;
      for (unsigned i = 0; i < 1 + random() % 6; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
      if (round % 4 == 0) bytes.resize(random() % bytes.size());
      try {
        const fsdp::CharacterMap map(bytes, "FILE");
        for (const char* text : {"\ufb01", "\uac01", "\xff\xfe", "\t a", ""}) {
          const auto rule = map.find(text);
          CHECK(rule.length <= std::string_view(text).size());
          CHECK(rule.result.size() < bytes.size());
        }
        ++loaded;
      } catch (const fsdp::FormatError& error) {
        CHECK(std::string(error.what()).find("FILE: the normalizer's character map") != std::string::npos);
        ++refused;
      }
    }
    CHECK(refused > 20);
    CHECK(loaded > 20);
  }
}
