#include "lib/tokenizers/bpe/pre_tokenizer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"

namespace {

using Words = std::vector<std::string_view>;

Words split(const std::string& pattern, std::string_view text) {
  Words words;
  fsdp::SplitPattern(pattern).split(text, words);
  return words;
}

void append_character(std::string& text, char32_t code) {
  const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned char kFirst[] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(kFirst[more] | code >> 6 * more);
  for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> 6 * i & 0x3f));
}

/// Returns the lengths of gaps and runs of the code points for which `belongs` holds, where a surrogate is as the
/// character before it.
template <typename Belongs>
std::vector<std::uint32_t> runs_of(Belongs belongs) {
  std::vector<std::uint32_t> runs;
  bool inside = false;
  char32_t begin = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if ((code >= 0xd800 && code < 0xe000) || belongs(code) == inside) continue;
    runs.push_back(code - begin);
    begin = code;
    inside = !inside;
  }
  return runs;
}

/// Lists the code points of which nothing is left when matches are removed.
std::vector<std::uint32_t> matches(const fsdp::SplitPattern& removing) {
  std::string all;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code < 0xd800 || code >= 0xe000) append_character(all, code);
  }
  Words words;
  removing.split(all, words);
  std::vector<bool> left(all.size());
  for (const auto word : words)
    std::fill_n(left.begin() + (word.data() - all.data()), static_cast<std::ptrdiff_t>(word.size()), true);
  std::size_t at = 0;
  return runs_of([&](char32_t code) {
    const bool matched = !left[at];
    at += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    return matched;
  });
}

}  // namespace

TEST_SUITE("tokenizer/pre_tokenizer") {
  TEST_CASE("split: matches and what lies between them are words") {
    CHECK(split("b+", "abbab") == Words{"a", "bb", "a", "b"});
    CHECK(split("b+", "") == Words{});
    CHECK(split("x", "abc") == Words{"abc"});
    CHECK(split("(?=b)", "abcbb") == Words{"a", "bc", "b", "b"});
    CHECK(split("(?<=e)\\s", "e e") == Words{"e", " ", "e"});
    CHECK(split("x?", "a\xC3\xA9") == Words{"a", "\xC3\xA9"});
  }

  TEST_CASE("split: white space is Unicode's, which U+180E is not") {
    CHECK(split("\\s+", "a \xC2\x85\xE3\x80\x80z") == Words{"a", " \xC2\x85\xE3\x80\x80", "z"});
    CHECK(split("[^\\s]+", "a\xE1\xA0\x8Ez") == Words{"a\xE1\xA0\x8Ez"});
    CHECK(split("\\S+", "a\xE1\xA0\x8Ez b") == Words{"a\xE1\xA0\x8Ez", " ", "b"});
  }

  TEST_CASE("split: a long text that backtracks far does not exhaust the stack") {
    std::string text(200000, 'a');
    CHECK(split("(?:(?:a|b)(?:a|c))+", text) == Words{text});
    text.assign(12000000, ' ');  // more steps back than PCRE2 takes by default
    CHECK(split("\\s*x|\\s+", text).size() == 1);
  }

  TEST_CASE("SplitPattern: every code point has the properties that Hugging Face's tokenizers gives it") {
    const auto truth = nlohmann::json::parse(std::ifstream(FSDP_FIXTURE_DIR "/tokenizers/unicode.json"));
    CHECK(truth["patterns"].size() > 60);
    for (const auto& [pattern, runs] : truth["patterns"].items()) {
      CAPTURE(pattern);
      CHECK(matches(fsdp::SplitPattern(pattern, "test", fsdp::SplitKeeps::gaps)) == runs);
    }
    using fsdp::CodePoints;
    const auto runs = [](const CodePoints& set) { return runs_of([&](char32_t code) { return set.contains(code); }); };
    CHECK(runs(CodePoints::numbers()) == truth["Digits"]);
    CHECK(runs(CodePoints::punctuation()) == truth["Punctuation"]);
    CHECK(runs(CodePoints::word_characters()) == truth["word"]);
  }

  TEST_CASE("SplitPattern: more kinds of characters than a byte has") {
    std::string pattern, text;
    for (char32_t code = 0x4e00; code < 0x4e00 + 300; ++code) {
      append_character(pattern, code);
      pattern += code % 2 == 0 ? "\\p{Lu}?" : "|";
      append_character(text, code);
    }
    text += "\u00c9 \u4e02\u00c9\u4e03";
    const auto words = split(pattern + "x", text);
    REQUIRE(words.size() == 152);
    CHECK(words[0] == "\u4e00\u4e01");
    CHECK(words[149] == "\u4f2a\u4f2b");
    CHECK(words[150] == "\u00c9 ");
    CHECK(words[151] == "\u4e02\u00c9\u4e03");
  }

  TEST_CASE("SplitPattern: what PCRE2 and Oniguruma read differently is refused") {
    for (const char* pattern : {"^a",
                                "a$",
                                "a.b",
                                "\\w+",
                                "\\b",
                                "\\h",
                                "[a[b]]",
                                "[a&&b]",
                                "[[:alpha:]]",
                                "a{2}+",
                                "a{2}?",
                                "a{,3}",
                                "a{x",
                                "(?i)a",
                                "(?<name>a)",
                                "(*UTF)",
                                "\\1",
                                "[\\S]",
                                "\\p{L&}",
                                "\\pL",
                                "\\p{",
                                "[a",
                                "[]a]",
                                "\\",
                                "a\\x41",
                                "[\\s-z]",
                                "[!-\\s]",
                                "\xFF",
                                "(?i:strasse)",
                                "(?i:a(?:b)oFf)",
                                "[a-",
                                "[z-a]",
                                "[\\p{L}-z]",
                                "\\x{d800}",
                                "\\x{110000}",
                                "(?i:\u00e9)",
                                "(?i:[a-\u00e9])",
                                "(?i:[\\p{L}])",
                                "(?i:[\\p{Han}])"}) {
      CAPTURE(pattern);
      CHECK_THROWS_WITH_AS(fsdp::SplitPattern(pattern, "FILE"), doctest::Contains("FILE: '"), fsdp::FormatError);
    }
    CHECK_THROWS_WITH_AS(fsdp::SplitPattern("ab\\w", "FILE"), "FILE: '\\w' at byte 2 of the pattern is not supported",
                         fsdp::FormatError);
    CHECK_NOTHROW(fsdp::SplitPattern("(?i:'s|'t|'re|'ve|'m|'ll|'d)ss", "FILE"));  // as cl100k's and others
    CHECK_THROWS_AS(fsdp::SplitPattern("("), fsdp::FormatError);
  }

  TEST_CASE("literal_pattern: matches exactly its text") {
    const std::string text = "a.(*)\\E[b] \xC3\xA9", around = "x" + text + "x";
    Words words;
    fsdp::SplitPattern(fsdp::literal_pattern(text)).split(around, words);
    REQUIRE(words.size() == 3);
    CHECK(words[1] == text);
  }

  TEST_CASE("PreTokenizer: patterns cut what those before them left, bytes that are no UTF-8 stand alone") {
    std::vector<fsdp::SplitPattern> patterns;
    patterns.emplace_back("b");
    patterns.emplace_back("aa");
    const fsdp::PreTokenizer words(std::move(patterns));
    Words found;
    words.split(
        "aaab\xFF\xFE"
        "aa",
        found);
    CHECK(found == Words{"aa", "a", "b", "\xFF\xFE", "aa"});
    fsdp::PreTokenizer({}).split("ab \xFF", found);
    CHECK(found == Words{"ab ", "\xFF"});
  }
}
