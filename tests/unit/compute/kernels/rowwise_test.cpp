#include <doctest/doctest.h>

#include "tests/unit/compute/kernels/kernel_test_support.hpp"

using namespace fsdp::test;
using namespace fsdp::kernels;

namespace {

constexpr std::int64_t kRows = 5;
// float32 sums of up to 257 terms of size 1: 257 * 2^-24 = 1.5e-5, plus the approximated tanh's 2e-7 and a few
// roundings.
constexpr double kFloatError = 2e-5;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// Runs body(table, type, dim) for all combinations.
template <typename Body>
void for_all(const Body& body) {
  for_tables_and_types([&](const auto& table, Type type) {
    for (const auto dim : kDims) {
      INFO(isa(table), ' ', name_of(type), " dim ", dim);
      body(table, type, dim);
    }
  });
}

}  // namespace

TEST_SUITE("kernels/rowwise") {
  TEST_CASE("embed: token plus position, rounded once") {
    for_all([](const Table& table, Type type, std::int64_t dim) {
      auto token = random_array(type, 11 * dim, 1);
      auto position = random_array(type, 6 * dim, 2);
      const std::vector<std::int32_t> ids{10, 0, 3, 3, 7};
      Array out(type, kRows * dim);
      const EmbedArgs args{out.data(), token.data(), position.data(), ids.data(), 3, 2, dim};
      table.embed(type, args, 1, kRows);
      int wrong = 0;
      for (std::int64_t t = 0; t < kRows; ++t) {
        for (std::int64_t j = 0; j < dim; ++j) {
          const auto sum = static_cast<float>(token[ids[static_cast<std::size_t>(t)] * dim + j]) +
                           static_cast<float>(position[(2 + t % 3) * dim + j]);
          if (out[t * dim + j] != (t == 0 ? 0.0 : rounded(type, sum))) ++wrong;  // row 0 is outside the range
        }
      }
      CHECK(wrong == 0);
    });
  }

  TEST_CASE("layer_norm: alone, of a residual sum, and of a residual sum with bias") {
    for_all([](const Table& table, Type type, std::int64_t dim) {
      for (int form = 0; form < 3; ++form) {
        auto x = random_array(type, kRows * dim, 1);
        auto y = random_array(type, kRows * dim, 2);
        auto bias = random_array(type, dim, 3);
        auto gamma = random_array(type, dim, 4);
        auto beta = random_array(type, dim, 5);
        Array sum(type, kRows * dim), out(type, kRows * dim);
        std::vector<float> mean(kRows), rstd(kRows);
        const NormArgs args{sum.data(),
                            out.data(),
                            mean.data(),
                            rstd.data(),
                            x.data(),
                            form > 0 ? y.data() : nullptr,
                            form > 1 ? bias.data() : nullptr,
                            gamma.data(),
                            beta.data(),
                            1e-5,
                            dim};
        table.layer_norm(type, args, 0, kRows);
        int wrong_sums = 0;
        // Values of size 1 normalised: 3 sigma * gamma of 3 sigma is about 10.
        Excess excess(type, 10 * kFloatError);
        for (std::int64_t t = 0; t < kRows; ++t) {
          std::vector<double> row;
          for (std::int64_t j = 0; j < dim; ++j) {
            const auto i = t * dim + j;
            if (form == 0) {
              row.push_back(x[i]);
              continue;
            }
            const auto added = static_cast<float>(y[i]) + (form > 1 ? static_cast<float>(bias[j]) : 0.0f);
            if (sum[i] != rounded(type, static_cast<float>(x[i]) + added)) ++wrong_sums;
            row.push_back(sum[i]);  // the norm reads the stored (rounded) sum
          }
          double m = 0, v = 0;
          for (const double e : row) m += e / static_cast<double>(dim);
          for (const double e : row) v += (e - m) * (e - m) / static_cast<double>(dim);
          for (std::int64_t j = 0; j < dim; ++j) {
            excess.add(out[t * dim + j],
                       (row[static_cast<std::size_t>(j)] - m) / std::sqrt(v + 1e-5) * gamma[j] + beta[j]);
          }
          CHECK(std::abs(mean[static_cast<std::size_t>(t)] - m) < kFloatError);
          CHECK(std::abs(rstd[static_cast<std::size_t>(t)] * std::sqrt(v + 1e-5) - 1) < kFloatError);
        }
        CHECK(wrong_sums == 0);
        CHECK(excess.worst() <= 1.0);
      }
    });
  }

  TEST_CASE("layer_norm_backward: gradients of input, scale, shift and the preceding bias") {
    for_all([](const Table& table, Type type, std::int64_t dim) {
      for (const bool with_residual : {false, true}) {
        auto x = random_array(type, kRows * dim, 1);
        auto grad = random_array(type, kRows * dim, 2);
        auto residual = random_array(type, kRows * dim, 3);
        auto gamma = random_array(type, dim, 4);
        const auto mean = random_floats(kRows, 5);
        auto rstd = random_floats(kRows, 6);
        for (auto& r : rstd) r = std::abs(r) + 0.5f;
        Array out(type, kRows * dim);
        const auto start = random_floats(dim, 7);  // column sums are added to these values
        auto grad_gamma = start, grad_beta = start, column = start;
        NormBackwardArgs args{out.data(),
                              grad.data(),
                              with_residual ? residual.data() : nullptr,
                              x.data(),
                              mean.data(),
                              rstd.data(),
                              gamma.data(),
                              grad_gamma.data(),
                              grad_beta.data(),
                              column.data(),
                              dim};
        table.layer_norm_backward(type, args, 0, kRows);
        Excess excess(type, 100 * kFloatError);
        Excess sums(Type::f32, 100 * kFloatError);
        std::vector<double> want_gamma(start.begin(), start.end()), want_beta = want_gamma, want_column = want_gamma;
        for (std::int64_t t = 0; t < kRows; ++t) {
          const double m = mean[static_cast<std::size_t>(t)], r = rstd[static_cast<std::size_t>(t)];
          double g1 = 0, g2 = 0;
          for (std::int64_t j = 0; j < dim; ++j) {
            const double n = (x[t * dim + j] - m) * r, g = grad[t * dim + j] * gamma[j];
            g1 += g / static_cast<double>(dim);
            g2 += g * n / static_cast<double>(dim);
            want_gamma[static_cast<std::size_t>(j)] += grad[t * dim + j] * n;
            want_beta[static_cast<std::size_t>(j)] += grad[t * dim + j];
          }
          for (std::int64_t j = 0; j < dim; ++j) {
            const double n = (x[t * dim + j] - m) * r;
            const double through = r * (grad[t * dim + j] * gamma[j] - g1 - n * g2);
            excess.add(out[t * dim + j], through + (with_residual ? residual[t * dim + j] : 0.0));
            want_column[static_cast<std::size_t>(j)] += out[t * dim + j];
          }
        }
        for (std::size_t j = 0; j < static_cast<std::size_t>(dim); ++j) {
          sums.add(grad_gamma[j], want_gamma[j]);
          sums.add(grad_beta[j], want_beta[j]);
          sums.add(column[j], want_column[j]);
        }
        CHECK(excess.worst() <= 1.0);
        CHECK(sums.worst() <= 1.0);

        // In place of either input, and without the optional column sums: results have the same bits.
        auto over = with_residual ? residual : grad;
        args.grad_x_TD = over.data();
        (with_residual ? args.residual_TD : args.grad_out_TD) = over.data();
        args.sum_grad_x_D = nullptr;
        table.layer_norm_backward(type, args, 0, kRows);
        CHECK((over == out));
      }
    });
  }

  TEST_CASE("bias_gelu and its backward: against the tanh formula in float64") {
    for_all([](const Table& table, Type type, std::int64_t dim) {
      auto pre = random_array(type, kRows * dim, 1, 3.0);
      pre.set(0, 60.0);  // saturated on both sides
      pre.set(kRows * dim - 1, -60.0);
      auto bias = random_array(type, dim, 2);
      const auto before = pre;
      Array out(type, kRows * dim), again(type, kRows * dim);
      table.bias_gelu(type, {pre.data(), out.data(), bias.data(), dim}, 0, kRows);
      auto grad = random_array(type, kRows * dim, 3);
      const auto grad_before = grad;
      const auto start = random_floats(dim, 4);
      auto column = start;
      table.bias_gelu_backward(type, {grad.data(), again.data(), pre.data(), column.data(), dim}, 0, kRows);
      // The approximated tanh has an error of 2e-7, times |x| / 2 <= 30; the error of its slope is larger by 4 |x|^3 c.
      Excess forward(type, kFloatError), backward(type, kFloatError), sums(Type::f32, kFloatError);
      std::vector<double> want(start.begin(), start.end());
      int wrong = 0;
      for (std::int64_t i = 0; i < kRows * dim; ++i) {
        if (pre[i] != rounded(type, static_cast<float>(before[i]) + static_cast<float>(bias[i % dim]))) ++wrong;
        forward.add(out[i], gelu(pre[i]));
        backward.add(grad[i], grad_before[i] * gelu_slope(pre[i]));
        want[static_cast<std::size_t>(i % dim)] += grad[i];
      }
      for (std::size_t j = 0; j < want.size(); ++j) sums.add(column[j], want[j]);
      CHECK(wrong == 0);
      CHECK(forward.worst() <= 1.0);
      CHECK(backward.worst() <= 1.0);
      CHECK(sums.worst() <= 1.0);
      CHECK((again == out));
      auto unbiased = pre;
      table.bias_gelu(type, {unbiased.data(), again.data(), nullptr, dim}, 0, kRows);
      CHECK((unbiased == pre));
      CHECK((again == out));
    });
  }

  TEST_CASE("add_bias: every combination, rounded once") {
    for_all([](const Table& table, Type type, std::int64_t dim) {
      auto y = random_array(type, kRows * dim, 1);
      auto bias = random_array(type, dim, 2);
      for (int form = 1; form < 4; ++form) {
        auto x = random_array(type, kRows * dim, 3);
        const auto before = x;
        table.add_bias(type, x.data(), (form & 1) != 0 ? y.data() : nullptr, (form & 2) != 0 ? bias.data() : nullptr,
                       dim, 0, kRows - 1);
        int wrong = 0;
        for (std::int64_t i = 0; i < kRows * dim; ++i) {
          const auto a = static_cast<float>(y[i]), b = static_cast<float>(bias[i % dim]);
          const float added = form == 1 ? a : form == 2 ? b : a + b;
          const bool inside = i < (kRows - 1) * dim;
          if (x[i] != (inside ? rounded(type, static_cast<float>(before[i]) + added) : before[i])) ++wrong;
        }
        CHECK(wrong == 0);
      }
    });
  }

  TEST_CASE("column_sum: adds its rows to the existing values") {
    for_all([](const Table& table, Type type, std::int64_t dim) {
      auto x = random_array(type, kRows * dim, 1);
      const auto start = random_floats(dim, 2);
      auto sum = start;
      table.column_sum(type, x.data(), sum.data(), dim, 1, kRows);
      int wrong = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        float want = start[static_cast<std::size_t>(j)];
        for (std::int64_t t = 1; t < kRows; ++t) want += static_cast<float>(x[t * dim + j]);
        if (sum[static_cast<std::size_t>(j)] != want) ++wrong;
      }
      CHECK(wrong == 0);
    });
  }
}
