#include <doctest/doctest.h>

#include "tests/unit/compute/kernels/kernel_test_support.hpp"

namespace {
#include "lib/compute/kernels/element.hpp"

using namespace fsdp::test;
using fsdp::kernels::runnable_tables;
using namespace std::string_view_literals;

double ulps(float got, double want) {
  const double step = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
  return std::abs(static_cast<double>(got) - want) / step;
}

TEST_SUITE("kernels/element") {
  TEST_CASE("exp_approx: within 2 ulp over its range") {
    double worst = 0;
    for (double x = -87.0; x <= 88.0; x += 1.0 / 4099) {
      const auto f = static_cast<float>(x);
      worst = std::max(worst, ulps(exp_approx(f), std::exp(static_cast<double>(f))));
    }
    MESSAGE("largest error " << worst << " ulp");
    CHECK(worst <= 2.0);
    CHECK(exp_approx(0.0f) == 1.0f);
  }

  TEST_CASE("exp_approx: saturates outside its range and keeps a NaN") {
    CHECK(exp_approx(-1e30f) < 2e-38f);
    CHECK(exp_approx(-std::numeric_limits<float>::infinity()) < 2e-38f);
    CHECK(exp_approx(1e30f) > 1e38f);
    CHECK(std::isfinite(exp_approx(1e30f)));
    CHECK(std::isnan(exp_approx(std::nanf(""))));
  }

  TEST_CASE("tanh_approx: absolute error below 2e-7") {
    double worst = 0;
    for (double x = -50; x <= 50; x += 1.0 / 8191) {
      const auto f = static_cast<float>(x);
      worst = std::max(worst, std::abs(static_cast<double>(tanh_approx(f)) - std::tanh(static_cast<double>(f))));
    }
    MESSAGE("largest error " << worst);
    CHECK(worst < 2e-7);
  }

  TEST_CASE("narrow: rounds to nearest even, overflows to infinity and keeps NaN and signed zero") {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> in{0.0f,    -0.0f,    inf,   -inf,  1.0f,  -1.0f,    65504.0f, 65519.9f, 65520.0f,
                          3.4e38f, -3.4e38f, 1e-8f, 3e-8f, 6e-8f, -6.1e-5f, 1e-40f,   -1e-45f};
    // Ties of both formats, once with an even and once with an odd neighbour below, and their neighbours.
    for (const float tie : {1.00390625f, 1.01171875f, 1.00048828125f, 1.00146484375f}) {
      for (const float sign : {1.0f, -1.0f}) {
        in.push_back(sign * tie);
        in.push_back(sign * std::nextafter(tie, 0.0f));
        in.push_back(sign * std::nextafter(tie, 2.0f));
      }
    }
    std::mt19937 engine(3);
    for (int i = 0; i < 20000; ++i) {
      const auto v = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
      if (!std::isnan(v)) in.push_back(v);
    }
    const auto n = static_cast<std::int64_t>(in.size());
    for_tables_and_types([&](const auto& table, Type type) {
      CAPTURE(isa(table));
      CAPTURE(name_of(type));
      Array out(type, n);
      table.narrow(type, out.data(), in.data(), 0, n);
      int wrong = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double want = rounded(type, in[static_cast<std::size_t>(i)]);
        if (out[i] != want || std::signbit(out[i]) != std::signbit(want)) ++wrong;
      }
      CHECK(wrong == 0);
    });
  }

  TEST_CASE("narrow: every NaN stays a NaN, with its sign in bf16") {
    std::vector<float> in;
    // The payload in the low bits alone would round a bf16 NaN up into infinity or through the sign.
    for (const std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xffc00000u, 0xff800001u, 0xffffffffu}) {
      for (int i = 0; i < 5; ++i) in.push_back(std::bit_cast<float>(bits));  // vector body and tail
    }
    const auto n = static_cast<std::int64_t>(in.size());
    for_tables_and_types([&](const auto& table, Type type) {
      CAPTURE(isa(table));
      CAPTURE(name_of(type));
      Array out(type, n);
      table.narrow(type, out.data(), in.data(), 0, n);
      for (std::int64_t i = 0; i < n; ++i) {
        CHECK(std::isnan(out[i]));
        const bool negative = (std::bit_cast<std::uint32_t>(in[static_cast<std::size_t>(i)]) >> 31) != 0;
        if (type == Type::bf16) CHECK(((out.bits16(i) & 0x8000) != 0) == negative);
      }
    });
  }

  TEST_CASE("runnable_tables: always contains the portable table, and table() is one of them") {
    const auto tables = runnable_tables();
    REQUIRE(!tables.empty());
    CHECK(std::any_of(tables.begin(), tables.end(), [](const auto* table) { return table->name == "portable"sv; }));
    CHECK(std::find(tables.begin(), tables.end(), &fsdp::kernels::table()) != tables.end());
  }
}

}  // namespace
