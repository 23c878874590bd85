#include "lib/training/evaluate/generation_ends.hpp"

#include <doctest/doctest.h>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using Ids = std::vector<std::int32_t>;

TEST_SUITE("eval/generation_ends") {
  TEST_CASE("generation_ends: generation_config.json, else config.json, of the first directory that has one") {
    const fsdp::test::TempDir model, tokenizer;
    const auto ends = [&] { return fsdp::generation_ends({"", model.path(), tokenizer.path(), "gpt2"}); };
    CHECK(ends().empty());
    fsdp::replace_file(tokenizer / "config.json", R"({"eos_token_id": 2})");
    CHECK(ends() == Ids{2});
    fsdp::replace_file(model / "config.json", R"({"eos_token_id": [128001, 128009]})");
    CHECK(ends() == Ids{128001, 128009});
    fsdp::replace_file(model / "generation_config.json", R"({"eos_token_id": 7, "do_sample": true})");
    CHECK(ends() == Ids{7});
    // As in transformers: the file is there, and names none.
    fsdp::replace_file(model / "generation_config.json", "{}");
    CHECK(ends().empty());
  }

  TEST_CASE("generation_ends: what is no id is refused by file and key") {
    const fsdp::test::TempDir model;
    for (const char* value : {"\"</s>\"", "1.5", "[1, null]", "[]", "true", "4294967296"}) {
      CAPTURE(value);
      fsdp::replace_file(model / "generation_config.json", std::string("{\"eos_token_id\": ") + value + "}");
      CHECK_THROWS_WITH_AS(fsdp::generation_ends({model.path()}),
                           doctest::Contains("generation_config.json: eos_token_id"), fsdp::FormatError);
    }
  }
}
