#pragma once
// Matrices that are multiplied in 8 bits are gathered so where gathers travel: half of 16 bits' bytes on the wire and
// in the gathered buffers, and no casts in micro-batches. Ranks agree on each matrix's largest absolute value, so that
// codes are those of the whole matrix, bit for bit. As torchao's enable_fsdp_float8_all_gather, but from the rows in
// the parameters' type.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/engine/fsdp/unit_params.hpp"

namespace fsdp::detail {

class Fp8Rows {
 public:
  /// Of a unit's parameters.
  Fp8Rows(const UnitContext& context, const std::vector<ParamLayout>& layouts);
  bool has(std::size_t param) const { return is_there_[param]; }
  bool has_any() const { return std::find(is_there_.begin(), is_there_.end(), true) != is_there_.end(); }
  /// The codes of this rank's rows, e4m3 [padded_rows, columns], of the last update; zeros before.
  const at::Tensor& rows(std::size_t param) const { return rows_[param]; }
  /// A gathered buffer as products take it: it brings its scale along.
  at::Tensor with_scale(std::size_t param, const at::Tensor& gathered) const;
  /// From this rank's rows. Collective. \param own  by parameter; the same in both
  void begin_update(const std::vector<at::Tensor>& own);
  void finish_update(const std::vector<at::Tensor>& own);

 private:
  const UnitContext& context_;
  std::vector<bool> is_there_;
  std::vector<at::Tensor> rows_, inverses_;
  std::vector<TensorGather> largest_;  ///< under way, of what has codes
  std::unique_ptr<Work> work_;
};

}  // namespace fsdp::detail
