#include "lib/training/evaluate/written_text.hpp"

#include <doctest/doctest.h>

#include "lib/base/text/utf8.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

using namespace fsdp;

namespace {

/// Each byte is a token.
std::vector<std::int32_t> bytes_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (std::int32_t id = 0; id < 256; ++id) {
      if (tokenizer.decode_one(id) == text.substr(i, 1)) ids.push_back(id);
    }
  }
  REQUIRE(ids.size() == text.size());
  return ids;
}

std::string write(WrittenText& text, const std::vector<std::int32_t>& ids) {
  std::string shown;
  for (const auto id : ids) {
    const auto more = text.add(id);
    CHECK(is_utf8(more));
    shown += more;
    CHECK(shown == text.text());
    if (text.is_stopped()) break;
  }
  return shown;
}

}  // namespace

TEST_SUITE("eval/written text") {
  TEST_CASE("ids one by one give the text of all at once, in whole characters") {
    const auto tokenizer = open_tokenizer(kBuiltInTokenizer);
    for (const std::string text : {"Où est naïve 東京 🎭? e2e4", "", "é"}) {
      for (const auto& ids : {tokenizer->encode(text), bytes_of(*tokenizer, text)}) {
        WrittenText written(*tokenizer, {});
        CHECK(write(written, ids) == text);
        CHECK(written.rest().empty());
        CHECK(written.text() == continuation(*tokenizer, ids));
      }
    }
    const auto cut = bytes_of(*tokenizer, "a\xf0\x9f\x8e");
    WrittenText written(*tokenizer, {});
    CHECK(write(written, cut) == "a");
    CHECK(written.rest() == "\xf0\x9f\x8e");
    CHECK(written.text() == continuation(*tokenizer, cut));
    CHECK(written.add(100000).empty());
  }

  TEST_CASE("a stop text ends the text before it, wherever tokens end") {
    const auto tokenizer = open_tokenizer(kBuiltInTokenizer);
    struct Row {
      std::string text;
      std::vector<std::string> stops;
      std::string expected;
      bool stopped;
    };
    for (const auto& [text, stops, expected, stopped] :
         {Row{"one\n\ntwo", {"\n\n"}, "one", true}, Row{"one\ntwo\n", {"\n\n"}, "one\ntwo\n", false},
          Row{"aaab", {"aab"}, "a", true}, Row{"abcd", {"cd", "bc"}, "a", true}, Row{"stop", {"stop"}, "", true},
          Row{"a 東東京", {"東京"}, "a 東", true}, Row{"a 東東", {"東京"}, "a 東東", false}}) {
      CAPTURE(text);
      for (const auto& ids : {tokenizer->encode(text), bytes_of(*tokenizer, text)}) {
        WrittenText written(*tokenizer, stops);
        auto shown = write(written, ids);
        CHECK(written.is_stopped() == stopped);
        if (!stopped) shown += written.rest();
        CHECK(shown == expected);
        CHECK(written.rest().empty());
      }
    }
  }
}
