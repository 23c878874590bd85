// fp8 matrices as torchao makes them (tests/fixtures/training/README.md), and their products.
#include "tests/support/torch_doctest.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <filesystem>
#include <limits>
#include <string>

#include "lib/compute/ops/device_ops.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/updates/companion.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/support/fp8_checks.hpp"
#include "tests/support/read_tensor.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using fsdp::test::same_bits;

namespace {

constexpr std::array kFormats{Fp8Format::e4m3, Fp8Format::e5m2};

const char* name_of(Fp8Format format) { return format == Fp8Format::e4m3 ? "e4m3" : "e5m2"; }

using test::fp8_bits;

/// Multiplies as tensor cores before Blackwell do (DeepSeek-V3, arXiv:2412.19437, section 3.3): 32 products and the sum
/// before them are aligned to the largest of them, and lose the bits after the thirteenth.
class AlignedSums final : public DeviceOps {
 public:
  AlignedSums() : DeviceOps(at::kCPU) {}
  void fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums, bool add) const override {
    const auto products_RCK = a.values.to(at::kDouble).unsqueeze(1) * b.values.to(at::kDouble).unsqueeze(0);
    auto sum_RC1 = at::zeros({out.size(0), out.size(1), 1}, at::kDouble);
    for (const auto& part : products_RCK.split(32, 2)) {
      const auto all = at::cat({part, sum_RC1}, 2);
      const auto unit = all.abs().amax(2, true).log2().floor().sub(13).exp2();
      sum_RC1 = (all / unit).trunc().sum(2, true) * unit;
    }
    const auto result = (sum_RC1.squeeze(2) * a.inverse * b.inverse).to(out.scalar_type());
    add ? out.add_(result) : out.copy_(result);
  }
};

}  // namespace

TEST_SUITE("ops/fp8") {
  TEST_CASE("codes and scales equal torchao's, by rows and by columns") {
    const SafetensorsReader stored(std::filesystem::path(FSDP_FIXTURE_DIR) / "training/fp8/casts.safetensors");
    for (const std::string name : {"normal", "odd", "tiny", "zero", "spread", "bf16", "fp16"}) {
      CAPTURE(name);
      const auto x = test::read_tensor(stored, name + ".x");
      for (const auto format : kFormats) {
        const auto want = name + "." + name_of(format);
        const auto made = host_ops().to_fp8(x, format, Fp8Sides::both);
        CHECK(same_bits(fp8_bits(made.rows_RC), test::read_tensor(stored, want)));
        CHECK(same_bits(made.inverse, test::read_tensor(stored, want + ".inverse")));
        const auto rows = x.size(0);
        CHECK(made.columns_CR.is_contiguous());
        CHECK(made.columns_CR.size(1) == (rows + 15) / 16 * 16);
        CHECK(same_bits(fp8_bits(made.columns_CR.narrow(1, 0, rows).t()), fp8_bits(made.rows_RC)));
        CHECK(fp8_bits(made.columns_CR.narrow(1, rows, made.columns_CR.size(1) - rows)).any().item<bool>() == false);
      }
    }
  }

  TEST_CASE("a single side equals the same side of both; columns of a larger matrix can be cast") {
    const auto wide = at::randn({21, 96}).to(at::kBFloat16);
    const auto x = wide.narrow(1, 32, 48);
    const auto both = host_ops().to_fp8(x, Fp8Format::e4m3, Fp8Sides::both);
    const auto rows = host_ops().to_fp8(x.contiguous(), Fp8Format::e4m3, Fp8Sides::rows);
    const auto columns = host_ops().to_fp8(x.contiguous(), Fp8Format::e4m3, Fp8Sides::columns);
    CHECK(both.rows_RC.is_contiguous());
    CHECK(same_bits(fp8_bits(rows.rows_RC), fp8_bits(both.rows_RC)));
    CHECK(same_bits(fp8_bits(columns.columns_CR), fp8_bits(both.columns_CR)));
    CHECK_FALSE(rows.columns_CR.defined());
    CHECK_FALSE(columns.rows_RC.defined());
  }

  TEST_CASE("plain operators give the same codes and scales") {
    const DeviceOps plain{at::kCPU};
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto x = (at::randn({21, 96}) * 3).to(dtype).narrow(1, 16, 64);
      for (const auto format : kFormats) {
        const auto want = plain.to_fp8(x, format, Fp8Sides::both), made = host_ops().to_fp8(x, format, Fp8Sides::both);
        CHECK(same_bits(fp8_bits(made.rows_RC), fp8_bits(want.rows_RC)));
        CHECK(same_bits(fp8_bits(made.columns_CR), fp8_bits(want.columns_CR)));
        CHECK(same_bits(made.inverse, want.inverse));
      }
    }
  }

  TEST_CASE("a part of a matrix uses the scale of the whole matrix") {
    const auto x = at::randn({40, 32});
    const auto whole = host_ops().to_fp8(x, Fp8Format::e4m3, Fp8Sides::rows);
    const auto largest =
        at::cat({host_ops().fp8_largest(x.narrow(0, 0, 13)), host_ops().fp8_largest(x.narrow(0, 13, 27))});
    const auto part = host_ops().fp8_cast(x.narrow(0, 13, 27), largest, Fp8Format::e4m3, Fp8Sides::rows);
    CHECK(same_bits(part.inverse, whole.inverse));
    CHECK(same_bits(fp8_bits(part.rows_RC), fp8_bits(whole.rows_RC.narrow(0, 13, 27))));
  }

  TEST_CASE("products equal those of the numbers that the codes stand for") { test::check_fp8_products(host_ops()); }

  TEST_CASE("products with 13 bits: the tolerance for GPUs before Blackwell holds, and is needed") {
    const AlignedSums gpu;
    test::check_fp8_products(gpu, test::kAlignedSums);
    const auto made = [&](std::int64_t rows) {
      return gpu.to_fp8(at::randn({rows, 64}), Fp8Format::e4m3, Fp8Sides::rows);
    };
    const auto a = made(512), b = made(512);
    auto out = at::empty({512, 512});
    gpu.fp8_product(out, {a.rows_RC, a.inverse}, {b.rows_RC, b.inverse}, Fp8Sums::exact, false);
    const auto want = test::fp8_values(a.rows_RC, a.inverse).matmul(test::fp8_values(b.rows_RC, b.inverse).t());
    const auto error = ((out - want).abs().max() / want.abs().max()).item<double>();
    CHECK(error > 5e-5);  // 25 times what float32 sums may have
    CHECK(error < test::kAlignedSums);
  }

  TEST_CASE("elements that are not finite make results that use them not finite") {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      auto x = at::randn({16, 32});
      x[3][5] = bad;
      const auto a = host_ops().to_fp8(x, Fp8Format::e4m3, Fp8Sides::both);
      const auto b = host_ops().to_fp8(at::randn({16, 32}), Fp8Format::e4m3, Fp8Sides::rows);
      auto out = at::empty({16, 16});
      host_ops().fp8_product(out, {a.rows_RC, a.inverse}, {b.rows_RC, b.inverse}, Fp8Sums::fast, false);
      CHECK(out.isfinite().any().item<bool>() == false);
    }
  }

  TEST_CASE("views of a tensor keep its companion, also on the meta device") {
    for (const auto device : {at::kCPU, at::kMeta}) {
      const auto x = at::empty({32, 16}, at::TensorOptions(at::kFloat8_e4m3fn).device(device));
      const auto scale = at::empty({1}, at::TensorOptions(at::kFloat).device(device));
      auto both = with_companion(x, scale);
      CHECK(both.sizes() == x.sizes());
      CHECK(both.device() == x.device());
      CHECK(companion_of(both.narrow(0, 0, 7)).is_same(scale));
      CHECK_FALSE(companion_of(x).defined());
      const auto view = both.narrow(0, 8, 8);
      const auto before = scale.use_count();
      both.reset();
      CHECK(scale.use_count() == before);  // released with the last view
      CHECK(companion_of(view).is_same(scale));
    }
    CHECK_THROWS(with_companion(at::empty({4, 4}).t(), at::empty({1})));
  }

  TEST_CASE("GPUs without fp8 products give a reason") {
    CHECK(gpu_fp8_problem(80).find("8.0") != std::string::npos);
    CHECK(gpu_fp8_problem(89).empty());
    CHECK(gpu_fp8_problem(90).empty());
    CHECK(gpu_fp8_problem(100).empty());
  }
}
