#include "lib/compute/ops/rowwise_ops.hpp"

#include <algorithm>

#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/compute/tensor/without_autograd.hpp"

namespace fsdp {

void RowwiseOps::product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const {
  // Each thread multiplies columns of its own, inside a parallel region, where libraries use one thread. There are at
  // least two parts, since one would run outside of a region. Rows go in pieces of 32 to 64 (all, if they are fewer):
  // for many more than these, libraries cut long sums elsewhere.
  if (out.dim() != 2) return CpuOps::product(out, a, b, add);  // batches of attention
  constexpr std::int64_t kColumns = 256, kRows = 64;
  const auto rows = out.size(0), columns = out.size(1);
  const auto width = std::clamp<std::int64_t>((columns + 1) / 2, 1, kColumns);
  const auto pieces = (rows + kRows - 1) / kRows;
  parallel_for((columns + width - 1) / width, 1, [&](std::int64_t begin, std::int64_t end) {
    const WithoutAutograd guard;
    for (auto part = begin; part < end; ++part) {
      const auto first = part * width, count = std::min(width, columns - first);
      const auto of_b = b.narrow(1, first, count);
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        const auto row = rows * piece / pieces, height = rows * (piece + 1) / pieces - row;
        auto of_out = out.narrow(0, row, height).narrow(1, first, count);
        host_product(of_out, a.narrow(0, row, height), of_b, add);
      }
    }
  });
}

}  // namespace fsdp
