#include "lib/text/tokenizer/pre_tokenizer.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lib/base/error.hpp"

namespace {

using Words = std::vector<std::string_view>;

Words split(const std::string& pattern, std::string_view text) {
  Words words;
  fsdp::SplitPattern(fsdp::pcre2_from_oniguruma(pattern, "test")).split(text, words);
  return words;
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

  TEST_CASE("pcre2_from_oniguruma: what the two read differently is refused") {
    for (const char* pattern :
         {"^a",      "a$",           "a.b",           "\\w+", "\\b",   "\\h",        "[a[b]]", "[a&&b]",  "[[:alpha:]]",
          "a{2}+",   "a{2}?",        "a{,3}",         "a{x",  "(?i)a", "(?<name>a)", "(*UTF)", "\\1",     "[\\S]",
          "\\p{L&}", "\\pL",         "\\p{",          "[a",   "[]a]",  "\\",         "a\\x41", "[\\s-z]", "[!-\\s]",
          "\xFF",    "(?i:strasse)", "(?i:a(?:b)oFf)"}) {
      CAPTURE(pattern);
      CHECK_THROWS_WITH_AS(fsdp::pcre2_from_oniguruma(pattern, "FILE"), doctest::Contains("FILE: '"),
                           fsdp::FormatError);
    }
    CHECK_THROWS_WITH_AS(fsdp::pcre2_from_oniguruma("ab\\w", "FILE"),
                         "FILE: '\\w' at byte 2 of the pattern is not supported", fsdp::FormatError);
    CHECK_NOTHROW(fsdp::pcre2_from_oniguruma("(?i:'s|'t|'re|'ve|'m|'ll|'d)ss", "FILE"));  // as cl100k's and others
    CHECK_THROWS_AS(fsdp::SplitPattern("("), fsdp::RuntimeFailure);
  }

  TEST_CASE("pcre2_literal: matches exactly its text") {
    const std::string text = "a.(*)\\E[b] \xC3\xA9", around = "x" + text + "x";
    Words words;
    fsdp::SplitPattern(fsdp::pcre2_literal(text)).split(around, words);
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
