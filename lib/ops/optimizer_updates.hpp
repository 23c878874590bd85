#pragma once
// One update of a group of parameters that share everything but their data: what optimizers ask an Ops for.
//
// params are float32 master weights; states have their shapes, float32 but where another type is named. All tensors of
// a group are on one device and contiguous. Gradients are float32 and divided by grad_divisor first: clipping and the
// loss scale cost no pass of their own.
#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace fsdp {

struct UpdateGroup {
  std::vector<at::Tensor> params, grads;
  double lr = 0;
  double weight_decay = 0;
  double grad_divisor = 1;
  std::int64_t step = 0;  ///< counted from 1
};

/// Loshchilov and Hutter, 2019; torch/optim/adamw.py.
struct AdamWUpdate : UpdateGroup {
  std::vector<at::Tensor> exp_avg, exp_avg_sq;
  double beta1 = 0, beta2 = 0, eps = 0;
};

/// torch/optim/sgd.py without dampening: g += wd p; b = mu b + g; p -= lr b, or lr (g + mu b) with nesterov.
struct SgdUpdate : UpdateGroup {
  std::vector<at::Tensor> momentum_buffer;  ///< empty: no momentum
  double momentum = 0;
  bool nesterov = false;
};

/// Chen et al., 2023: p *= 1 - lr wd; p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.
struct LionUpdate : UpdateGroup {
  std::vector<at::Tensor> exp_avg;
  double beta1 = 0, beta2 = 0;
};

/// torchdistx's AnyPrecisionAdamW: AdamW whose moments are float32 or bf16, each of its operations rounded to the type
/// it is kept in; with `compensation`, bf16, the rounding of a parameter's update is kept for the next one (Kahan).
struct AnyPrecisionUpdate : UpdateGroup {
  std::vector<at::Tensor> exp_avg, exp_avg_sq;
  std::vector<at::Tensor> compensation;  ///< empty: none
  double beta1 = 0, beta2 = 0, eps = 0;
  // Bias corrections in float32, as there: a moment of 8 bits shows another rounding of them.
  float step_size() const { return static_cast<float>(lr) / (1.0f - power(beta1)); }
  float denom_correction() const { return std::sqrt(1.0f - power(beta2)); }

 private:
  float power(double beta) const { return std::pow(static_cast<float>(beta), static_cast<float>(step)); }
};

}  // namespace fsdp
