#include "apps/convert/check_files.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

using namespace fsdp;

namespace {

template <typename T, std::size_t N>
std::span<const std::byte> bytes_of(const std::array<T, N>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

TEST_SUITE("convert/check_files") {
  TEST_CASE("count_non_finite: counts in every type that has NaN or infinity") {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const std::array floats{1.0f, inf, NAN, -inf, std::numeric_limits<float>::max()};
    auto found = count_non_finite(DType::f32, bytes_of(floats));
    CHECK((found.nan == 1 && found.inf == 2 && found.first == 1));
    const std::array doubles{0.0, 1e308, -std::nan("")};
    found = count_non_finite(DType::f64, bytes_of(doubles));
    CHECK((found.nan == 1 && found.inf == 0 && found.first == 2));
    const std::array<std::uint16_t, 5> halves{0x3c00, 0x7bff, 0x7c00, 0xfc00, 0x7c01};  // 1, 65504, inf, -inf, NaN
    found = count_non_finite(DType::f16, bytes_of(halves));
    CHECK((found.nan == 1 && found.inf == 2 && found.first == 2));
    const std::array<std::uint16_t, 4> brains{0x3f80, 0x7f7f, 0xff80, 0x7fc0};  // 1, largest, -inf, NaN
    found = count_non_finite(DType::bf16, bytes_of(brains));
    CHECK((found.nan == 1 && found.inf == 1 && found.first == 2));
    const std::array<std::uint8_t, 4> e4m3{0x7e, 0x7f, 0xff, 0x78};  // 448, NaN, NaN, 256
    found = count_non_finite(DType::f8_e4m3fn, bytes_of(e4m3));
    CHECK((found.nan == 2 && found.inf == 0 && found.first == 1));
    const std::array<std::uint8_t, 4> e5m2{0x7b, 0x7c, 0xfd, 0x00};  // 57344, inf, NaN, 0
    found = count_non_finite(DType::f8_e5m2, bytes_of(e5m2));
    CHECK((found.nan == 1 && found.inf == 1 && found.first == 1));
    const std::array complex{1.0f, 2.0f, inf, NAN, 0.0f, inf};
    found = count_non_finite(DType::c64, bytes_of(complex));
    CHECK((found.nan == 1 && found.inf == 1 && found.first == 1));
    const std::array<std::int32_t, 2> integers{0x7f800000, 0x7fc00000};
    found = count_non_finite(DType::i32, bytes_of(integers));
    CHECK((found.nan == 0 && found.inf == 0));
  }

  TEST_CASE("element_value: small floats follow their definition") {
    const std::array<std::uint16_t, 5> halves{0x3c00, 0xc000, 0x0001, 0x7bff, 0x3555};
    CHECK(element_value(DType::f16, bytes_of(halves), 0).real == 1.0);
    CHECK(element_value(DType::f16, bytes_of(halves), 1).real == -2.0);
    CHECK(element_value(DType::f16, bytes_of(halves), 2).real == std::ldexp(1.0, -24));
    CHECK(element_value(DType::f16, bytes_of(halves), 3).real == 65504.0);
    CHECK(element_value(DType::f16, bytes_of(halves), 4).real == doctest::Approx(1.0 / 3).epsilon(1e-3));
    const std::array<std::uint8_t, 4> eights{0x7e, 0x01, 0xb8, 0x7f};
    CHECK(element_value(DType::f8_e4m3fn, bytes_of(eights), 0).real == 448.0);
    CHECK(element_value(DType::f8_e4m3fn, bytes_of(eights), 1).real == std::ldexp(1.0, -9));
    CHECK(element_value(DType::f8_e4m3fn, bytes_of(eights), 2).real == -1.0);
    CHECK(std::isnan(element_value(DType::f8_e4m3fn, bytes_of(eights), 3).real));
    const std::array<std::uint8_t, 2> e5m2{0x7b, 0xfc};
    CHECK(element_value(DType::f8_e5m2, bytes_of(e5m2), 0).real == 57344.0);
    CHECK(element_value(DType::f8_e5m2, bytes_of(e5m2), 1).real == -INFINITY);
    const std::array<std::uint16_t, 1> brain{0xc049};
    CHECK(element_value(DType::bf16, bytes_of(brain), 0).real == -3.140625);
    const std::array complex{1.5, -2.5};
    const auto value = element_value(DType::c128, bytes_of(complex), 0);
    CHECK((value.real == 1.5 && value.imaginary == -2.5));
    const std::array<std::uint8_t, 2> unsigned8{200, 1};
    CHECK(element_value(DType::u8, bytes_of(unsigned8), 0).real == 200);
    CHECK(element_value(DType::i8, bytes_of(unsigned8), 0).real == -56);
  }

  TEST_CASE("position_of: row-major") {
    CHECK(position_of(0, {}).empty());
    CHECK(position_of(23, {2, 3, 4}) == std::vector<std::int64_t>{1, 2, 3});
    CHECK(position_of(5, {2, 3}) == std::vector<std::int64_t>{1, 2});
  }
}
