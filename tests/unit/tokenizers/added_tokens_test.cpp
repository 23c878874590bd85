#include "lib/tokenizers/vocabulary/added_tokens.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"

namespace {

/// Formats the segments as "text" or "#id".
std::vector<std::string> split(const std::vector<fsdp::AddedToken>& tokens, std::string_view text) {
  std::vector<std::string> found;
  for (const auto& segment : fsdp::AddedTokenSearch(tokens).raw().split(text)) {
    found.push_back(segment.id == fsdp::TextSegment::kPlain ? std::string(segment.text)
                                                            : "#" + std::to_string(segment.id));
  }
  return found;
}

using Found = std::vector<std::string>;

}  // namespace

TEST_SUITE("tokenizer/added_tokens") {
  TEST_CASE("split: the leftmost and longest, special ones never") {
    const std::vector<fsdp::AddedToken> tokens{{1, "ab", false}, {2, "abc", false}, {3, "bcd", false}, {4, "x", true}};
    CHECK(split(tokens, "xabcdab") == Found{"x", "#2", "d", "#1"});
    CHECK(split(tokens, "bcdab") == Found{"#3", "#1"});
    CHECK(split(tokens, "") == Found{});
    CHECK(fsdp::AddedTokenSearch({{4, "x", true}}).empty());
  }

  TEST_CASE("split: white space beside a name, and words") {
    using Token = fsdp::AddedToken;
    const Token right{.id = 1, .text = "<r>", .special = false, .rstrip = true};
    const Token left{.id = 2, .text = "<l>", .special = false, .lstrip = true};
    const Token word{.id = 3, .text = "ww", .special = false, .single_word = true};
    const Token lines{.id = 4, .text = "\n\n", .special = false};
    const std::vector<Token> tokens{right, left, word, lines};
    CHECK(split(tokens, "a <r> \n b") == Found{"a ", "#1", "b"});
    CHECK(split(tokens, "a \u3000<l> b") == Found{"a", "#2", " b"});
    CHECK(split(tokens, "<r> <l>") == Found{"#1", "#2"});
    // White space that the first token strips is searched for tokens again; the text continues after the one found.
    CHECK(split(tokens, "<r> \n\n b") == Found{"#1", "#4", " b"});
    CHECK(split(tokens, "wwww ww aww _ww ww\u0301 (ww)") == Found{"wwww ", "#3", " aww _ww ww\u0301 (", "#3", ")"});
    CHECK(split(tokens, "\xff ww \xff<r>") == Found{"\xff ", "#3", " \xff", "#1"});
  }

  TEST_CASE("split: a long run of white space that names are made of is looked through once") {
    // A scan of the whole text for each name would take hours.
    constexpr std::size_t kSpaces = 1 << 20;
    for (const bool left : {true, false}) {
      const fsdp::AddedToken space{.id = 1, .text = " ", .special = false, .lstrip = left, .rstrip = !left};
      const auto segments = fsdp::AddedTokenSearch({space}).raw().split(std::string(kSpaces, ' '));
      CHECK(segments.size() == kSpaces);
    }
  }

  TEST_CASE("split: a special name that is plain text is passed over as a whole, with the names inside it") {
    const std::vector<fsdp::AddedToken> tokens{{1, "<", false}, {2, "<|s|>", true}, {3, "<|", false}};
    CHECK(split(tokens, "<|s|><|s<") == Found{"<|s|>", "#3", "s", "#1"});
    const auto is_plain = [](fsdp::TextRange part) { return part.begin == 0; };
    const fsdp::AddedTokenSearch search(tokens, fsdp::SpecialNames::tokens);
    const auto segments = search.raw().split("<|s|><|s|>", is_plain);
    REQUIRE(segments.size() == 2);
    CHECK(segments[0].text == "<|s|>");
    CHECK(segments[1].id == 2);
    CHECK(!fsdp::AddedTokenSearch(tokens).find("<|s|>"));
  }

  TEST_CASE("split: a space that takes the spaces on both sides stands for all of them once") {
    const fsdp::AddedToken space{.id = 1, .text = " ", .special = false, .lstrip = true, .rstrip = true};
    CHECK(split({space}, "  a   b ") == Found{"#1", "a", "#1", "b", "#1"});
  }

  TEST_CASE("split: time does not grow with the number of names") {
    std::vector<fsdp::AddedToken> tokens;
    for (std::int32_t id = 0; id < 6000; ++id)
      tokens.push_back({.id = id, .text = "<unused" + std::to_string(id) + ">", .special = false});
    const fsdp::AddedTokenSearch search(tokens);
    const std::string text(4 << 20, '<');  // by a look at each name, minutes
    CHECK(search.raw().split(text).size() == 1);
    CHECK(search.find("<unused5999>") == 5999);
    CHECK(split(tokens, "<<unused12><unused123>") == Found{"<", "#12", "#123"});
  }

  TEST_CASE("AddedTokenSearch: normalized names are looked for in normalized texts, and known by their own") {
    const fsdp::AddedTokenSearch search({{.id = 7, .text = "a b", .special = false, .normalized = true}},
                                        fsdp::SpecialNames::plain, [](const std::string& name) { return "_" + name; });
    CHECK(search.raw().empty());
    CHECK(search.normalized().split("_a b").front().id == 7);
    CHECK(search.find("a b") == 7);
    CHECK(!search.find("_a b"));
  }
}
