#include "lib/files/transform/convert_job_output.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/files/transform/convert_job.hpp"
#include "lib/files/transform/convert_job_input.hpp"

using namespace fsdp;

TEST_SUITE("convert/convert_job_output") {
  TEST_CASE("choose_output_kind: --to decides, then the suffix, then the options") {
    CHECK(choose_output_kind({"a/b.pt", "", false, false}) == OutputKind::torch);
    CHECK(choose_output_kind({"b.pt", "dcp", true, false}) == OutputKind::dcp);
    CHECK(choose_output_kind({"b.safetensors", "", false, false}) == OutputKind::safetensors);
    CHECK(choose_output_kind({"dir/", "", true, false}) == OutputKind::dcp);
    CHECK(choose_output_kind({"dir", "", false, true}) == OutputKind::hf);
    CHECK_THROWS_AS(choose_output_kind({"dir", "", false, false}), UsageError);
    CHECK_THROWS_AS(choose_output_kind({"b.pt", "", true, false}), UsageError);
    CHECK_THROWS_AS(choose_output_kind({"b.pt", "pickle", false, false}), UsageError);
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

  TEST_CASE("progress_text: bytes, rate and remaining time") {
    CHECK(progress_text(1u << 30, 4ull << 30, 2.0) == "1.00 GiB of 4.00 GiB (25 %)   512 MiB/s   eta 0:06");
    CHECK(progress_text(0, 1u << 20, 0.0) == "0 KiB of 1 MiB (0 %)   0 KiB/s   eta ?");
    CHECK(progress_text(0, 0, 1.0).find("100 %") != std::string::npos);
  }
}
