#include "lib/compute/device/gpus.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

TEST_SUITE("memory/cards") {
  TEST_CASE("cards by name, ignoring case; an unknown name lists the choices") {
    CHECK(fsdp::find_gpu("a100-80g").total_bytes == std::int64_t{81050} << 20);
    CHECK(fsdp::find_gpu("A100-80GB").name == "a100-80g");
    CHECK(fsdp::find_gpu("v100-32g").compute_capability == 70);
    CHECK_THROWS_WITH_AS(fsdp::find_gpu("a1000"), doctest::Contains("a100-40g"), fsdp::UsageError);
    CHECK_THROWS_AS(fsdp::find_gpu(""), fsdp::UsageError);
  }

  TEST_CASE("a number of bytes also describes a card") {
    CHECK(fsdp::find_gpu("79GiB").total_bytes == std::int64_t{79} << 30);
    CHECK(fsdp::find_gpu("8e10").total_bytes == 80'000'000'000);
    CHECK_THROWS_AS(fsdp::find_gpu("12"), fsdp::UsageError);
    CHECK_THROWS_AS(fsdp::find_gpu("80 elephants"), fsdp::UsageError);
  }

  TEST_CASE("units of bytes") {
    CHECK(fsdp::parse_bytes("1.5 GiB", "--x") == std::int64_t{3} << 29);
    CHECK(fsdp::parse_bytes("512MB", "--x") == 512'000'000);
    CHECK(fsdp::parse_bytes("0", "--x") == 0);
    CHECK_THROWS_WITH_AS(fsdp::parse_bytes("-1", "--x"), doctest::Contains("--x"), fsdp::UsageError);
    CHECK_THROWS_AS(fsdp::parse_bytes("1e30", "--x"), fsdp::UsageError);
    CHECK_THROWS_AS(fsdp::parse_bytes("nan", "--x"), fsdp::UsageError);
  }
}
