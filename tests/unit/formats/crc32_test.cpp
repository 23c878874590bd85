#include "lib/formats/crc32.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

std::uint32_t zlib_crc(std::uint32_t crc, std::span<const std::byte> data) {
  return static_cast<std::uint32_t>(
      ::crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
}

}  // namespace

TEST_SUITE("formats/crc32") {
  TEST_CASE("crc32: gives the check value of the CRC catalogue") {
    const std::string_view digits = "123456789";
    CHECK(fsdp::crc32(0, std::as_bytes(std::span(digits.data(), digits.size()))) == 0xcbf43926u);
  }

  TEST_CASE("crc32: agrees with zlib at short lengths and every alignment") {
    const auto bytes = test::random_bytes(700, 1);
    for (std::size_t begin = 0; begin < 17; ++begin) {
      for (std::size_t length = 0; begin + length <= 400; ++length) {
        const auto part = std::span(bytes).subspan(begin, length);
        if (fsdp::crc32(0x1234u, part) != zlib_crc(0x1234u, part)) FAIL_CHECK("begin ", begin, " length ", length);
      }
    }
  }

  TEST_CASE("crc32: continues over pieces and combines") {
    const auto bytes = test::random_bytes(100'003, 2);
    const std::uint32_t whole = zlib_crc(0, bytes);
    for (const std::size_t cut : {0u, 1u, 63u, 64u, 4096u, 100'003u}) {
      CAPTURE(cut);
      const auto head = std::span(bytes).first(cut), tail = std::span(bytes).subspan(cut);
      CHECK(fsdp::crc32(fsdp::crc32(0, head), tail) == whole);
      CHECK(fsdp::crc32_combine(fsdp::crc32(0, head), fsdp::crc32(0, tail), tail.size()) == whole);
    }
  }
}
