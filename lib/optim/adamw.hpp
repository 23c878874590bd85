#pragma once
// AdamW (Loshchilov and Hutter, 2019) on shards, by ATen's fused kernel.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lib/ops/ops.hpp"

namespace fsdp {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// State is float32 [padded_rows, ...] like the master weights it belongs to, and on their device.
class AdamW {
 public:
  /// \param master_weights  float32 tensors updated in place; kept alive by this object
  /// \param decay    per tensor: weight decay applies
  AdamW(const Ops& ops, std::vector<at::Tensor> master_weights, std::vector<bool> decay, const AdamWOptions& options);

  /// One update with learning rate `lr`. Gradients are divided by `grad_divisor` first (clipping, loss scale): free,
  /// the kernel reads them anyway.
  void step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor);

  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  at::Tensor exp_avg(std::size_t i) { return exp_avg_[i]; }
  at::Tensor exp_avg_sq(std::size_t i) { return exp_avg_sq_[i]; }
  const AdamWOptions& options() const { return options_; }

 private:
  void step_group(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor, bool decay);

  const Ops& ops_;
  std::vector<at::Tensor> master_weights_;
  std::vector<bool> decay_;
  AdamWOptions options_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace fsdp
