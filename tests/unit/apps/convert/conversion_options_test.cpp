#include "apps/convert/conversion_options.hpp"

#include <doctest/doctest.h>

#include "apps/convert/convert_job.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"

using namespace fsdp;

TEST_SUITE("convert/conversion_options") {
  TEST_CASE("choose_writer: --to decides, then the suffix, then the options") {
    CHECK(choose_writer("a/b.pt", "", false, false).name == "torch");
    CHECK(choose_writer("b.pt", "dcp", true, false).name == "dcp");
    CHECK(choose_writer("b.safetensors", "", false, false).name == "safetensors");
    CHECK(choose_writer("dir/", "", true, false).name == "dcp");
    CHECK(choose_writer("dir", "", false, true).name == "hf");
    CHECK_THROWS_AS(choose_writer("dir", "", false, false), UsageError);
    CHECK_THROWS_AS(choose_writer("b.pt", "", true, false), UsageError);
    CHECK_THROWS_AS(choose_writer("b.pt", "pickle", false, false), UsageError);
  }

  TEST_CASE("parse_size: decimal and binary units") {
    CHECK(parse_size("5GB", "--x") == 5'000'000'000);
    CHECK(parse_size("2GiB", "--x") == 2147483648);
    CHECK(parse_size("1.5kb", "--x") == 1500);
    CHECK(parse_size("7", "--x") == 7);
    for (const char* text : {"", "GB", "5 GB", "-1", "0", "0.5", "nan", "inf", "1e40", "5XB"}) {
      CAPTURE(text);
      CHECK_THROWS_AS(parse_size(text, "--x"), UsageError);
    }
  }

  TEST_CASE("parse_pair: splits at the last equals sign; parse_dtype: knows names of PyTorch and short ones") {
    CHECK(parse_pair("a(?=b)=c", "--rename") == std::pair<std::string, std::string>("a(?=b)", "c"));
    CHECK(parse_pair("a=", "--rename").second.empty());
    CHECK_THROWS_AS(parse_pair("=b", "--rename"), UsageError);
    CHECK(parse_dtype("bf16") == DType::bf16);
    CHECK(parse_dtype("float64") == DType::f64);
    CHECK_THROWS_AS(parse_dtype("BF16"), UsageError);
  }

  TEST_CASE("conversion_of: every format that is written, by its name and by its suffixes") {
    for (const auto* writer : format_writers()) {
      CAPTURE(writer->name);
      ConvertOptions options;
      options.paths = {"in", "out"};
      options.to = writer->name;
      CHECK(conversion_of(options).writer == writer);
      if (!writer->is_folder())
        CHECK(writer_of_suffix("a/b" + std::string(writer->suffixes.substr(1, writer->suffixes.find(' ', 1) - 1))) ==
              writer);
    }
    ConvertOptions options;
    options.paths = {"in", "out.gguf"};
    options.input.dtype = "q8_0";
    CHECK(conversion_of(options).gguf_type == GgufFileType::q8_0);
    options.input.dtype = "float64";
    CHECK_THROWS_AS(conversion_of(options), UsageError);
  }

  TEST_CASE("progress_text: bytes, rate and remaining time") {
    CHECK(progress_text(1u << 30, 4ull << 30, 2.0) == "1.00 GiB of 4.00 GiB (25 %)   512 MiB/s   eta 0:06");
    CHECK(progress_text(0, 1u << 20, 0.0) == "0 KiB of 1 MiB (0 %)   0 KiB/s   eta ?");
    CHECK(progress_text(0, 0, 1.0).find("100 %") != std::string::npos);
  }
}
