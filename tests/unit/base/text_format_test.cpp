#include "lib/base/text_format.hpp"

#include <doctest/doctest.h>

namespace fsdp {

TEST_SUITE("base/text_format") {
  TEST_CASE("format_count_of: one is singular, all else plural, with separators") {
    CHECK(format_count_of(1, "text") == "1 text");
    CHECK(format_count_of(0, "text") == "0 texts");
    CHECK(format_count_of(2, "row") == "2 rows");
    CHECK(format_count_of(1234567, "step") == "1,234,567 steps");
    CHECK(format_count_of(1, "repository", "repositories") == "1 repository");
    CHECK(format_count_of(3, "repository", "repositories") == "3 repositories");
  }
}

}  // namespace fsdp
