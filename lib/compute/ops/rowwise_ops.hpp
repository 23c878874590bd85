#pragma once
// Operations on the CPU whose results for a row do not depend on the rows beside it.
#include "lib/compute/ops/cpu_ops.hpp"

namespace fsdp {

/// CpuOps whose products have the same bits in each row for any number of rows from kRowsAlike on, on as many threads.
/// MKL otherwise cuts long sums among threads, by the number of rows, and has kernels of its own for few rows.
class RowwiseOps final : public CpuOps {
 public:
  static constexpr std::int64_t kRowsAlike = 16;

 protected:
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override;
};

}  // namespace fsdp
