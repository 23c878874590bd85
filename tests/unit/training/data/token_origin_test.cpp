#include "lib/training/data/prepare_data.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/token_files/token_file_writer.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::test::TempDir;

TEST_SUITE("train/token_origin") {
  TEST_CASE("CodeLlama's tokenizer names a fill_token for which its model has no row: both belong together") {
    const TempDir dir;
    std::filesystem::copy(FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model", dir / "tokenizer.model");
    const auto rows = fsdp::open_tokenizer(dir.path().string())->vocab_size();
    fsdp::replace_file(dir / "tokenizer_config.json",
                       R"({"tokenizer_class": "CodeLlamaTokenizer", "fill_token": "<FILL_ME>"})");
    const auto tokenizer = fsdp::open_tokenizer(dir.path().string());
    REQUIRE(tokenizer->vocab_size() == rows + 1);
    fsdp::ModelConfig model, smaller;
    model.vocab_size = rows;
    smaller.vocab_size = rows - 1;
    CHECK_NOTHROW(fsdp::check_vocabulary(*tokenizer, "it", model));
    CHECK_THROWS_AS(fsdp::check_vocabulary(*tokenizer, "it", smaller), fsdp::FormatError);

    for (const auto ids : {rows, rows + 1}) {  // files of earlier versions have the smaller number
      CAPTURE(ids);
      const auto file = dir / (std::to_string(ids) + ".h5");
      const auto writer = fsdp::write_token_documents(file, {"it", tokenizer->description(), ids, {}});
      writer->add(std::vector<std::int32_t>{1, 2, 3});
      REQUIRE(writer->finish());
      CHECK_NOTHROW(fsdp::check_token_origin(*fsdp::open_token_file(file), tokenizer.get(), model));
      CHECK_THROWS_AS(fsdp::check_token_origin(*fsdp::open_token_file(file), tokenizer.get(), smaller),
                      fsdp::FormatError);
    }
    const auto file = dir / "other.h5";
    const auto writer = fsdp::write_token_documents(file, {"it", tokenizer->description(), rows - 1, {}});
    writer->add(std::vector<std::int32_t>{1, 2, 3});
    REQUIRE(writer->finish());
    CHECK_THROWS_AS(fsdp::check_token_origin(*fsdp::open_token_file(file), tokenizer.get(), model), fsdp::FormatError);
  }
}
