#include <doctest/doctest.h>

#include <numeric>
#include <span>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/text/token_files/token_file.hpp"
#include "tests/support/temp_files.hpp"

TEST_SUITE("dataset/raw_token_file") {
  TEST_CASE("rows of 1024 ids, up to the last whole one") {
    const fsdp::test::TempDir dir;
    std::vector<std::uint16_t> ids(2100);
    std::iota(ids.begin(), ids.end(), std::uint16_t{64000});
    fsdp::File::create(dir / "train.bin").write(std::as_bytes(std::span(ids)));
    CHECK(fsdp::is_token_file(dir / "train.bin"));
    const auto rows = fsdp::open_token_file(dir / "train.bin");
    CHECK(rows->num_records() == 2);
    std::vector<std::int32_t> read(2048);
    rows->read_rows(std::vector<std::int64_t>{1, 0}, read);
    CHECK(std::vector<std::int32_t>(read.begin(), read.begin() + 1024) ==
          std::vector<std::int32_t>(ids.begin() + 1024, ids.begin() + 2048));
    CHECK(read[1024] == 64000);
    fsdp::replace_file(dir / "short.bin", "ids");
    CHECK_THROWS_AS(fsdp::open_token_file(dir / "short.bin"), fsdp::FormatError);
  }
}
