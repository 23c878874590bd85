#include "lib/training/data/validation_sets.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

std::string round_trip(const std::string& text) { return validation_sets_text(parse_validation_sets(text)); }

}  // namespace

TEST_SUITE("config/validation_sets") {
  TEST_CASE("parse_validation_sets: one path, or several with names") {
    CHECK(parse_validation_sets("").empty());
    const auto one = parse_validation_sets("data/val.h5");
    REQUIRE(one.size() == 1);
    CHECK(one[0].name.empty());
    CHECK(one[0].path == "data/val.h5");
    const auto two = parse_validation_sets("easy=a/b.h5,hard.2=/c,d/e=f.h5");
    REQUIRE(two.size() == 2);
    CHECK(two[0].name == "easy");
    CHECK(two[0].path == "a/b.h5");
    CHECK(two[1].name == "hard.2");
    CHECK(two[1].path == "/c,d/e=f.h5");  // no NAME= follows that comma
    const auto named = parse_validation_sets("only=x.h5");
    REQUIRE(named.size() == 1);
    CHECK(named[0].name == "only");
    for (const char* text : {"a.h5", "a=b", "a=b,c=d", "runs/lr=0.1/val.h5"}) CHECK(round_trip(text) == text);
  }

  TEST_CASE("parse_validation_sets: what is there is a path, whatever is in it") {
    const test::TempDir folder;
    const auto file = folder.path() / "a=1,b=2.h5";
    std::ofstream(file) << "x";
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    const auto sets = parse_validation_sets("a=1,b=2.h5");
    std::filesystem::current_path(before);
    REQUIRE(sets.size() == 1);
    CHECK(sets[0].path == "a=1,b=2.h5");
    const auto two = "x=" + file.string() + ",y=gone.h5";
    const bool as_named =
        parse_validation_sets(two) == std::vector<ValidationSet>{{"x", file.string()}, {"y", "gone.h5"}};
    CHECK(as_named);
    CHECK(round_trip(two) == two);
    CHECK(parse_validation_sets("y=gone.h5,x=" + file.string()).back().path == file.string());
  }

  TEST_CASE("parse_validation_sets: names twice and empty paths are refused, a name that cannot be gives a hint") {
    CHECK_THROWS_WITH_AS(parse_validation_sets("a=x,a=y"), "val-data a=x,a=y: the name a is there twice", RequestError);
    CHECK_THROWS_WITH_AS(parse_validation_sets("a=,b=y"), "val-data a=,b=y: a= names no path", RequestError);
    const auto slash = parse_validation_sets("a/b=x.h5");
    REQUIRE(slash.size() == 1);
    CHECK(hint_about_names(slash[0]).find("NAME=PATH") != std::string::npos);
    CHECK(hint_about_names({"", "x.h5"}).empty());
  }
}
