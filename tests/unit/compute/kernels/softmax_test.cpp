#include <doctest/doctest.h>

#include "tests/unit/compute/kernels/kernel_test_support.hpp"

using namespace fsdp::test;
using namespace fsdp::kernels;

namespace {

// Sums of up to 257 probabilities in float32 (257 * 2^-24) and exp within 2 ulp (1.2e-7) on values of at most 1.
constexpr double kFloatError = 2e-5;

struct Rows {
  std::int64_t vocab;
  std::int64_t padded;
  std::vector<std::int32_t> targets;
  std::vector<float> weights = {};  ///< empty: each target weighs 1

  CrossEntropyArgs args(Array& logits, float scale, bool write_gradient) const {
    return {logits.data(), targets.data(), weights.empty() ? nullptr : weights.data(), vocab, padded,
            scale,         write_gradient};
  }
};

/// Loss and gradient (in place) in float64.
LossSum reference_loss(std::vector<double>& logits, const Rows& rows, double scale) {
  LossSum sum;
  for (std::size_t t = 0; t < rows.targets.size(); ++t) {
    double* row = logits.data() + static_cast<std::int64_t>(t) * rows.padded;
    const auto target = rows.targets[t];
    const double weight = rows.weights.empty() ? 1.0 : static_cast<double>(rows.weights[t]);
    if (target < 0) {
      std::fill(row, row + rows.padded, 0.0);
      continue;
    }
    const double top = *std::max_element(row, row + rows.vocab);
    double total = 0;
    for (std::int64_t j = 0; j < rows.vocab; ++j) total += std::exp(row[j] - top);
    sum.nats += weight * (std::log(total) + top - row[target]);
    sum.weight += weight;
    for (std::int64_t j = 0; j < rows.vocab; ++j)
      row[j] = scale * weight * (std::exp(row[j] - top) / total - (j == target ? 1.0 : 0.0));
    std::fill(row + rows.vocab, row + rows.padded, 0.0);
  }
  return sum;
}

void check_loss(const Table& table, Type type, Array logits, const Rows& rows) {
  const auto n = static_cast<std::int64_t>(rows.targets.size());
  std::vector<double> want;
  for (std::int64_t i = 0; i < logits.size(); ++i) want.push_back(logits[i]);
  constexpr float kScale = 0.25f;
  const auto want_sum = reference_loss(want, rows, kScale);

  auto untouched = logits;
  const auto first = table.cross_entropy(type, rows.args(untouched, kScale, false), 0, n);
  CHECK((untouched == logits));
  CHECK(first.weight == want_sum.weight);
  // exp within 2 ulp and partial float32 sums: 1e-5 relative on the sum is 1e-5 absolute on its logarithm.
  CHECK(std::abs(first.nats - want_sum.nats) <= 1e-5 * static_cast<double>(n) + 1e-12 * std::abs(want_sum.nats));

  const auto sum = table.cross_entropy(type, rows.args(logits, kScale, true), 0, n);
  CHECK(sum.nats == first.nats);
  Excess excess(type, kScale * 1e-6);
  for (std::int64_t i = 0; i < logits.size(); ++i) excess.add(logits[i], want[static_cast<std::size_t>(i)]);
  CHECK(excess.worst() <= 1.0);
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    if (i % rows.padded >= rows.vocab) REQUIRE(logits[i] == 0.0);
  }
}

}  // namespace

TEST_SUITE("kernels/softmax") {
  TEST_CASE("causal_softmax and its backward: a row sees only earlier positions, the rest becomes zero") {
    for_tables_and_types([](const Table& table, Type type) {
      for (const auto length : kDims) {
        for (const std::int64_t gap : {0, 3}) {
          for (const double spread : {1.0, 200.0}) {
            INFO(isa(table), ' ', name_of(type), " L ", length, " gap ", gap, " spread ", spread);
            const std::int64_t leading = length + gap, rows = 2 * length;
            constexpr float kScale = 0.125f;
            auto scores = random_array(type, rows * leading, 1, spread);
            const auto before = scores;
            table.causal_softmax(type, {scores.data(), length, leading, kScale}, 1, rows);  // starts within a block
            auto grad = random_array(type, rows * leading, 2);
            const auto grad_before = grad;
            table.causal_softmax_backward(type, {grad.data(), scores.data(), length, leading, kScale}, 1, rows);
            Excess forward(type, kFloatError), backward(type, kFloatError);
            bool outside_kept = true, future_zero = true;
            for (std::int64_t r = 0; r < rows; ++r) {
              const auto row = r * leading;
              const std::int64_t count = r % length + 1;
              double top = before[row], total = 0, dot = 0;
              for (std::int64_t j = 0; j < count; ++j) top = std::max(top, before[row + j]);
              for (std::int64_t j = 0; j < count; ++j) total += std::exp((before[row + j] - top) * kScale);
              for (std::int64_t j = 0; j < count; ++j) dot += grad_before[row + j] * scores[row + j];
              for (std::int64_t j = 0; j < leading; ++j) {
                if (r == 0 || j >= length) {
                  outside_kept =
                      outside_kept && scores[row + j] == before[row + j] && grad[row + j] == grad_before[row + j];
                } else if (j >= count) {
                  future_zero = future_zero && scores[row + j] == 0.0 && grad[row + j] == 0.0;
                } else {
                  forward.add(scores[row + j], std::exp((before[row + j] - top) * kScale) / total);
                  backward.add(grad[row + j], scores[row + j] * (grad_before[row + j] - dot) * kScale);
                }
              }
            }
            CHECK(outside_kept);
            CHECK(future_zero);
            CHECK(forward.worst() <= 1.0);
            CHECK(backward.worst() <= 1.0);
          }
        }
      }
    });
  }

  TEST_CASE("cross_entropy: odd vocabularies, padding and ignored targets") {
    for_tables_and_types([](const Table& table, Type type) {
      for (const std::int64_t vocab : {1, 7, 15, 16, 17, 257, 5000}) {
        for (const std::int64_t padding : {0, 7}) {
          INFO(isa(table), ' ', name_of(type), " V ", vocab, " padding ", padding);
          const auto last = static_cast<std::int32_t>(vocab - 1);
          const Rows rows{vocab, vocab + padding, {0, -1, last, last / 2, -100}};
          check_loss(table, type, random_array(type, 5 * rows.padded, 3, 4.0), rows);
          auto weighted = rows;
          weighted.weights = {0.25f, 1.0f, 1.5f, -0.5f, 1.0f};
          check_loss(table, type, random_array(type, 5 * rows.padded, 3, 4.0), weighted);
        }
      }
    });
  }

  TEST_CASE("cross_entropy: extreme and equal logits") {
    for_tables_and_types([](const Table& table, Type type) {
      INFO(isa(table), ' ', name_of(type));
      const Rows rows{97, 128, {3, 5, 96, 0}};
      Array logits(type, 4 * 128);
      for (std::int64_t j = 0; j < 97; ++j) {
        logits.set(j, j % 2 == 0 ? 80.0 : -80.0);    // the target is 160 below the maximum
        logits.set(128 + j, j == 5 ? 80.0 : -80.0);  // certain and right: the loss is 0
        logits.set(256 + j, 12.5);                   // all equal: the loss is log 97
        logits.set(384 + j, j == 50 ? 80.0 : 0.0);   // certain and wrong
      }
      check_loss(table, type, logits, rows);
      auto copy = logits;
      const auto args = rows.args(copy, 1.0f, false);
      CHECK(table.cross_entropy(type, args, 1, 2).nats == doctest::Approx(0.0).epsilon(1e-6));
      CHECK(table.cross_entropy(type, args, 2, 3).nats == doctest::Approx(std::log(97.0)).epsilon(1e-6));
      CHECK(table.cross_entropy(type, args, 3, 4).nats == doctest::Approx(80.0).epsilon(1e-6));
    });
  }

  TEST_CASE("entropies: odd vocabularies, padding, ignored targets, certain, equal and impossible ones") {
    for_tables_and_types([](const Table& table, Type type) {
      for (const std::int64_t vocab : {1, 7, 17, 257, 5000}) {
        INFO(isa(table), ' ', name_of(type), " V ", vocab);
        const std::int64_t padded = vocab + 7;
        auto logits = random_array(type, 5 * padded, 3, 4.0);
        for (std::int64_t j = 0; j < vocab; ++j) {
          logits.set(2 * padded + j, j == 0 ? 80.0 : -80.0);
          logits.set(3 * padded + j, 12.5);
          logits.set(4 * padded + j, j % 2 == 0 ? 1.0 : -std::numeric_limits<double>::infinity());
        }
        const std::vector<std::int32_t> targets{0, -1, 0, 0, 0};
        std::vector<double> got(5);
        table.entropies(type, {logits.data(), targets.data(), vocab, padded, got.data()}, 0, 5);
        double total = 0, want = 0;
        for (std::int64_t j = 0; j < vocab; ++j) total += std::exp(logits[j]);
        for (std::int64_t j = 0; j < vocab; ++j) want -= std::exp(logits[j]) / total * (logits[j] - std::log(total));
        // Partial sums in float32 of at most 4096 terms of up to 9, and exp within 2 ulp.
        CHECK(std::abs(got[0] - want) < 2e-5);
        CHECK(got[1] == 0);
        CHECK(std::abs(got[2]) < 1e-6);
        CHECK(std::abs(got[3] - std::log(static_cast<double>(vocab))) < 2e-5);
        CHECK(std::abs(got[4] - std::log(static_cast<double>((vocab + 1) / 2))) < 2e-5);
      }
    });
  }

  TEST_CASE("cross_entropy: a NaN or infinite logit shows in the loss") {
    for_tables_and_types([](const Table& table, Type type) {
      for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        for (const std::int64_t at : {0, 20, 96}) {
          INFO(isa(table), ' ', name_of(type), ' ', bad, " at ", at);
          auto logits = random_array(type, 97, 1);
          logits.set(at, bad);
          const std::int32_t target = 5;
          CHECK_FALSE(std::isfinite(
              table.cross_entropy(type, {logits.data(), &target, nullptr, 97, 97, 1.0f, true}, 0, 1).nats));
        }
      }
    });
  }

  TEST_CASE("cross_entropy: a target of weight 0 is ignored, whatever its logits are") {
    for_tables_and_types([](const Table& table, Type type) {
      INFO(isa(table), ' ', name_of(type));
      auto logits = random_array(type, 2 * 17, 5);
      logits.set(3, std::nan(""));
      const Rows rows{17, 17, {3, 4}, {0.0f, 1.0f}};
      const auto sum = table.cross_entropy(type, rows.args(logits, 1.0f, true), 0, 2);
      CHECK(std::isfinite(sum.nats));
      CHECK(sum.weight == 1.0);
      for (std::int64_t j = 0; j < 17; ++j) CHECK(logits[j] == 0.0);
      CHECK(logits[17 + 4] < 0.0);
    });
  }

  TEST_CASE("cross_entropy: weights of 1 give the bits of no weights") {
    for_tables_and_types([](const Table& table, Type type) {
      INFO(isa(table), ' ', name_of(type));
      const Rows plain{257, 257, {0, 5, 256, -1}};
      auto ones = plain;
      ones.weights.assign(4, 1.0f);
      auto a = random_array(type, 4 * 257, 7, 4.0), b = a;
      CHECK(table.cross_entropy(type, plain.args(a, 0.3f, true), 0, 4).nats ==
            table.cross_entropy(type, ones.args(b, 0.3f, true), 0, 4).nats);
      CHECK((a == b));
    });
  }

  TEST_CASE("dropout: keeps its share, scales the rest, and depends only on key and column") {
    constexpr std::int64_t kRowsN = 200, kDim = 257;
    for_tables_and_types([](const Table& table, Type type) {
      for (const float p : {0.1f, 0.5f, 0.9f}) {
        INFO(isa(table), ' ', name_of(type), " p ", p);
        std::vector<std::uint64_t> keys;
        for (std::uint64_t t = 0; t < kRowsN; ++t) keys.push_back(t * 0x9e3779b97f4a7c15ull);
        Array ones(type, std::vector<double>(kRowsN * kDim, 1.0));
        table.dropout(type, {ones.data(), keys.data(), p, kDim}, 0, kRowsN);
        std::int64_t kept = 0;
        const double scale = rounded(type, 1.0f / (1.0f - p));
        for (std::int64_t i = 0; i < kRowsN * kDim; ++i) {
          REQUIRE((ones[i] == 0.0 || ones[i] == scale));
          kept += ones[i] != 0.0 ? 1 : 0;
        }
        const double n = kRowsN * kDim;
        const double sigma = std::sqrt(static_cast<double>(p) * (1 - static_cast<double>(p)) * n);
        CHECK(std::abs(static_cast<double>(kept) - (1 - static_cast<double>(p)) * n) < 5 * sigma);

        // A single row at another place and truncated has the same mask.
        Array alone(type, std::vector<double>(100, 1.0));
        table.dropout(type, {alone.data(), &keys[17], p, 100}, 0, 1);
        bool same = true;
        for (std::int64_t j = 0; j < 100; ++j) same = same && alone[j] == ones[17 * kDim + j];
        CHECK(same);
        // Neighbouring columns and rows are independent: they agree as often as independent draws.
        std::int64_t agree = 0;
        for (std::int64_t i = kDim; i < kRowsN * kDim; ++i) agree += (ones[i] != 0) == (ones[i - kDim] != 0) ? 1 : 0;
        const double expected = static_cast<double>(p * p + (1 - p) * (1 - p));
        CHECK(std::abs(static_cast<double>(agree) / (n - kDim) - expected) < 5 * std::sqrt(0.25 / (n - kDim)));
      }
    });
  }

  TEST_CASE("dropout: all instruction sets give the same mask") {
    const std::uint64_t key = 42;
    std::vector<Array> masks;
    for (const auto* table : runnable_tables()) {
      masks.emplace_back(Type::f32, std::vector<double>(1000, 1.0));
      table->dropout(Type::f32, {masks.back().data(), &key, 0.3f, 1000}, 0, 1);
    }
    for (const auto& mask : masks) CHECK((mask == masks.front()));
  }
}
