#include <doctest/doctest.h>

#include "tests/unit/compute/kernels/kernel_test_support.hpp"

using namespace fsdp::test;

TEST_SUITE("kernels/flat") {
  TEST_CASE("sum_sources: adds in the order of the sources, bit for bit, and returns the squares") {
    for_tables_and_types([](const auto& table, Type type) {
      for (const std::int64_t n : {1, 7, 16, 17, 257, 2048, 5000}) {
        for (int num_sources = 1; num_sources <= 4; ++num_sources) {
          for (const bool accumulate : {false, true}) {
            INFO(isa(table), ' ', name_of(type), ' ', n, ' ', num_sources, ' ', accumulate);
            std::vector<Array> arrays;
            std::vector<const void*> sources;
            for (int s = 0; s < num_sources; ++s) arrays.push_back(random_array(type, n, static_cast<unsigned>(s) + 1));
            for (auto& array : arrays) sources.push_back(array.data());
            auto out = random_floats(n, 9);
            const auto before = out;
            const std::int64_t begin = n > 2 ? 1 : 0;
            const double squares =
                table.sum_sources(type, out.data(), sources.data(), num_sources, accumulate, begin, n);
            int wrong = 0;
            double want_squares = 0;
            for (std::int64_t i = begin; i < n; ++i) {
              float want = accumulate ? before[static_cast<std::size_t>(i)] : 0.0f;
              for (const auto& array : arrays) want += static_cast<float>(array[i]);
              if (out[static_cast<std::size_t>(i)] != want) ++wrong;
              want_squares += static_cast<double>(want) * want;
            }
            CHECK(wrong == 0);
            CHECK((begin == 0 || out[0] == before[0]));
            // float64 sums of at most 5000 terms in another order: n * 2^-53.
            CHECK(squares == doctest::Approx(want_squares).epsilon(1e-12));
          }
        }
      }
    });
  }

  TEST_CASE("widen_add: exact, and only within its range") {
    for_tables_and_types([](const auto& table, Type type) {
      for (const auto n : kDims) {
        INFO(isa(table), ' ', name_of(type), ' ', n);
        auto in = random_array(type, n, 4);
        auto out = random_floats(n, 5);
        const auto before = out;
        table.upcast_add(type, out.data(), in.data(), 0, n - 1);
        for (std::int64_t i = 0; i < n; ++i) {
          const auto k = static_cast<std::size_t>(i);
          CHECK(out[k] == (i < n - 1 ? before[k] + static_cast<float>(in[i]) : before[k]));
        }
      }
    });
  }

  TEST_CASE("sum_squares: float64 accuracy where float32 sums lose digits") {
    std::vector<float> x(1'000'000, 0.1f);
    x[0] = 3000.0f;
    const double want = 9e6 + 999'999 * static_cast<double>(0.1f) * static_cast<double>(0.1f);
    for (const auto* table : fsdp::kernels::runnable_tables()) {
      CAPTURE(isa(*table));
      // A million roundings of 2^-53 in the worst case.
      CHECK(std::abs(table->sum_squares(x.data(), 0, 1'000'000) / want - 1) < 1.2e-10);
      CHECK(table->sum_squares(x.data(), 5, 5) == 0.0);
    }
  }

  TEST_CASE("has_non_finite: finds one bad element anywhere in the range and ignores those outside") {
    const float inf = std::numeric_limits<float>::infinity();
    for (const auto* table : fsdp::kernels::runnable_tables()) {
      for (const auto n : kDims) {
        for (const float bad : {inf, -inf, std::nanf("")}) {
          INFO(isa(*table), ' ', n);
          std::vector<float> x(static_cast<std::size_t>(n), std::numeric_limits<float>::max());
          CHECK_FALSE(table->has_non_finite(x.data(), 0, n));
          int missed = 0;
          for (std::int64_t i = 0; i < n; ++i) {
            x[static_cast<std::size_t>(i)] = bad;
            if (!table->has_non_finite(x.data(), 0, n)) ++missed;
            if (table->has_non_finite(x.data(), 0, i)) ++missed;
            if (table->has_non_finite(x.data(), i + 1, n)) ++missed;
            x[static_cast<std::size_t>(i)] = 1.0f;
          }
          CHECK(missed == 0);
        }
      }
    }
  }
}
