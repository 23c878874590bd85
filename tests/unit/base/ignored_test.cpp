#include "lib/base/messages/ignored.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using fsdp::Ignored;
using Lines = std::vector<std::string>;

TEST_SUITE("base/ignored") {
  TEST_CASE("names that differ in numbers between dots are one, places are lines") {
    Ignored ignored;
    CHECK(ignored.empty());
    ignored.add("nothing", {});
    CHECK(ignored.empty());
    ignored.add("step-4", {"optim.layers.10.w", "epoch", "optim.layers.2.w", "r2.w", "7"});
    Ignored more;
    more.add("config.json", {"use_cache"});
    more.add("step-4", {"epoch"});
    ignored.add(more);
    CHECK(ignored.lines() == Lines{"config.json: use_cache", "step-4: *, epoch, optim.layers.*.w, r2.w"});
    CHECK(ignored.to_json() ==
          nlohmann::json{{"config.json", {"use_cache"}}, {"step-4", {"*", "epoch", "optim.layers.*.w", "r2.w"}}});
  }

  TEST_CASE("a line has the first names, the JSON has all") {
    Ignored ignored;
    std::vector<std::string> names;
    for (char c = 'a'; c <= 'z'; ++c) names.emplace_back(1, c);
    ignored.add("data", names);
    ignored.add("file", {"a.x", "a.y"});
    std::vector<std::string> many{"b.file"};
    for (char c = 'a'; c <= 'z'; ++c) many.push_back(std::string("optim.") + c);
    ignored.add("step-4", many);
    CHECK(ignored.lines() == Lines{"data: a, b, c, d, e, f, g, h, i, j, k, l, and 14 more", "file: a.x, a.y",
                                   "step-4: b.file, optim.* (26 names)"});
    CHECK(ignored.to_json().at("data").size() == 26);
  }
}
