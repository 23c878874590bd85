#include "lib/encoding/labels.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::test::TempDir;
using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

namespace {

Names found_in(const TempDir& dir, const char* lines) {
  const auto file = dir / "texts.jsonl";
  fsdp::File::create(file).write(std::string_view(lines));
  return fsdp::find_labels({file}, "", {});
}

}  // namespace

TEST_SUITE("encoding/labels") {
  TEST_CASE("a label is its number or its name") {
    const Names labels{"no", "yes", "perhaps"};
    CHECK(fsdp::number_of_label({{"label", 2}}, labels) == 2);
    CHECK(fsdp::number_of_label({{"label", "yes"}}, labels) == 1);
    CHECK(fsdp::number_of_label({{"label", true}}, labels) == 1);
    for (const auto& [label, words] : {std::pair<Json, const char*>(3, "the labels are 0 to 2"),
                                       {-1, "'label' is -1"},
                                       {18446744073709551615u, "18446744073709551615"},
                                       {"maybe", "the labels are no, yes, perhaps"},
                                       {nullptr, "'label' is null"},
                                       {0.5, "expected the whole number or the name"},
                                       {Json::array({1}), "expected the whole number or the name"}}) {
      CHECK_THROWS_WITH_AS(fsdp::number_of_label({{"label", label}}, labels), doctest::Contains(words),
                           fsdp::FormatError);
    }
    CHECK_THROWS_WITH_AS(fsdp::number_of_label({{"text", "x"}}, labels), doctest::Contains("has no 'label'"),
                         fsdp::FormatError);
  }

  TEST_CASE("the labels of a file: names in order, or all numbers to the largest") {
    const TempDir dir;
    CHECK(found_in(dir, "{\"text\": \"x\", \"label\": \"b\"}\n{\"text\": \"y\", \"label\": \"a\"}\n") ==
          Names{"a", "b"});
    CHECK(found_in(dir, "{\"text\": \"x\", \"label\": 2}\n{\"text\": \"y\", \"label\": 0}\n") ==
          Names{"LABEL_0", "LABEL_1", "LABEL_2"});
    CHECK(found_in(dir, "{\"text\": \"x\", \"label\": false}\n{\"text\": \"y\", \"label\": true}\n") ==
          Names{"LABEL_0", "LABEL_1"});
    for (const auto& [lines, words] :
         {std::pair("{\"text\": \"x\", \"label\": 0}\n{\"text\": \"x\", \"label\": \"a\"}\n", "line 2"),
          {"{\"text\": \"x\", \"label\": 70000}\n", "'label' is 70000"},
          {"{\"text\": \"x\"}\n", "line 1: has no 'label'"},
          {"{\"text\": \n", "line 1: is no JSON"},
          {"[1, 2]\n", "texts.jsonl"}}) {
      CAPTURE(lines);
      CHECK_THROWS_WITH_AS(found_in(dir, lines), doctest::Contains(words), fsdp::FormatError);
    }
  }
}
