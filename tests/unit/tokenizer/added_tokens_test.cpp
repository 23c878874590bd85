#include "lib/tokenizer/added_tokens.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

namespace {

/// The segments as "text" or "#id".
std::vector<std::string> split(const std::vector<fsdp::AddedToken>& tokens, std::string_view text) {
  std::vector<std::string> found;
  for (const auto& segment : fsdp::AddedTokenSearch(tokens, "FILE").split(text)) {
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
    CHECK(fsdp::AddedTokenSearch({{4, "x", true}}, "FILE").empty());
  }

  TEST_CASE("split: tokens of the raw text come before normalized ones") {
    CHECK(split({{1, "ab", false, true}, {2, "bc", false, false}}, "abcab") == Found{"a", "#2", "#1"});
  }

  TEST_CASE("AddedTokenSearch: tokens that take white space are refused by name") {
    CHECK_THROWS_WITH_AS(split({{1, "<mask>", false, false, false, true}}, ""),
                         doctest::Contains("FILE: added token '<mask>'"), fsdp::FormatError);
  }
}
