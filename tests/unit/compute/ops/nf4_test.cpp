// 4-bit weights against bitsandbytes (tests/fixtures/training/README.md), bit for bit.
#include "lib/compute/ops/nf4.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "lib/compute/ops/device_ops.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/support/read_tensor.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const SafetensorsReader& fixture() {
  static const SafetensorsReader reader(std::filesystem::path(FSDP_FIXTURE_DIR) / "training/qlora/tensors.safetensors");
  return reader;
}

at::Tensor of(const std::string& name) { return read_tensor(fixture(), name); }

struct Quantized {
  Nf4Matrix single, nested;
};

Quantized quantize(const at::Tensor& weight) {
  const auto blocks = quantize_nf4(weight.to(at::kFloat).contiguous().view({-1}));
  const auto scales = quantize_scales(blocks.absmax);
  const auto rows = weight.size(0), columns = weight.size(1);
  return {{blocks.codes, blocks.absmax, {}, {}, rows, columns},
          {blocks.codes, scales.codes, scales.absmax, scales.offset, rows, columns}};
}

}  // namespace

TEST_SUITE("ops/nf4") {
  TEST_CASE("codes, scales and dequantized values equal bitsandbytes'") {
    for (const std::string name : {"even", "tail", "oddcols", "long"}) {
      CAPTURE(name);
      const auto weight = of(name + ".weight");
      const auto made = quantize(weight);
      const auto packed = of(name + ".nf4.packed");
      CHECK(made.single.codes_S.view({-1}).narrow(0, 0, packed.numel()).equal(packed));
      CHECK(made.single.absmax_S.equal(of(name + ".nf4.absmax")));
      CHECK(made.nested.absmax_S.equal(of(name + ".nf4.double.absmax")));
      CHECK(made.nested.nested_absmax.equal(of(name + ".nf4.double.nested_absmax")));
      CHECK(made.nested.nested_offset.equal(of(name + ".nf4.double.offset")));
      const DeviceOps plain(at::kCPU);
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&plain)}) {
        const auto type = weight.scalar_type();
        for (const bool is_nested : {false, true}) {
          const auto key = name + ".nf4" + (is_nested ? ".double" : "") + ".dequantised";
          const auto got = ops->dequantize(is_nested ? made.nested : made.single, type);
          if (fixture().tensors().contains(key)) CHECK(got.equal(of(key)));
          CHECK(got.sizes() == weight.sizes());
        }
      }
    }
  }

  TEST_CASE("16-bit values are the float32 ones, rounded once") {
    const auto made = quantize(at::randn({100, 200}));
    const auto wide = host_ops().dequantize(made.nested, at::kFloat);
    for (const auto type : {at::kBFloat16, at::kHalf})
      CHECK(host_ops().dequantize(made.nested, type).equal(wide.to(type)));
  }

  TEST_CASE("a matrix of zeros stays zero, and padding of the last block is 0") {
    const auto made = quantize(at::zeros({3, 50}));
    CHECK(made.single.codes_S.equal(at::full({3, 32}, 0x77, at::kByte)));
    CHECK(host_ops().dequantize(made.single, at::kFloat).equal(at::zeros({3, 50})));
    CHECK(host_ops().dequantize(made.nested, at::kFloat).equal(at::zeros({3, 50})));
  }

  TEST_CASE("the scales' offset is the mean that torch computes with one thread on a processor with AVX2") {
    const bool same_vectors = at::get_cpu_capability() == "AVX2";
    const auto threads = at::get_num_threads();
    at::set_num_threads(1);
    for (const std::int64_t n : {1, 7, 8, 31, 33, 172, 511, 512, 513, 4096, 8191, 20000, 32767}) {
      const auto scales = at::randn({n}).abs_();
      const auto mine = quantize_scales(scales).offset.item<float>(), torchs = scales.mean().item<float>();
      CAPTURE(n);
      CHECK(std::abs(mine - torchs) <= (same_vectors ? 0.0f : 1e-6f * torchs));
    }
    at::set_num_threads(threads);
  }

  TEST_CASE("blocks do not depend on where a shard begins, nor scales on the number of threads") {
    const auto weight = at::randn({1000, 3000});
    const auto whole = quantize_nf4(weight.view({-1}));
    const auto half = quantize_nf4(weight.view({-1}).narrow(0, 64 * 20000, weight.numel() - 64 * 20000).contiguous());
    CHECK(half.codes.equal(whole.codes.narrow(0, 20000, half.codes.size(0))));
    CHECK(half.absmax.equal(whole.absmax.narrow(0, 20000, half.absmax.size(0))));
    const auto threads = at::get_num_threads();
    at::set_num_threads(1);
    const auto alone = quantize_scales(whole.absmax);
    at::set_num_threads(2);
    const auto together = quantize_scales(whole.absmax);
    at::set_num_threads(threads);
    CHECK(alone.codes.equal(together.codes));
    CHECK(alone.offset.equal(together.offset));
  }
}
