#pragma once
// Arguments of the optimizers' kernels: flat arrays, elements [begin, end) of each.

namespace fsdp::kernels {

struct SgdArgs {
  float* param;
  const float* grad;
  float* momentum_buffer;  ///< may be null
  float lr, weight_decay, grad_scale, momentum;
  bool nesterov;
};

struct LionArgs {
  float* param;
  const float* grad;
  float* exp_avg;
  float lr, weight_decay_factor;  ///< 1 - lr * weight decay
  float grad_scale, beta1, beta2;
  float rest1, rest2;  ///< 1 - beta, as float64 has it
};

struct AnyPrecisionArgs {
  float* param;
  const float* grad;
  void* exp_avg;              ///< float32 or bf16
  void* exp_avg_sq;           ///< float32 or bf16
  void* compensation;         ///< bf16; may be null
  float weight_decay_factor;  ///< 1 - lr * weight decay
  float grad_scale, beta1, beta2, eps;
  float rest1, rest2;      ///< 1 - beta, as float64 has it
  float step_size;         ///< lr / (1 - beta1^t)
  float denom_correction;  ///< sqrt(1 - beta2^t)
};

}  // namespace fsdp::kernels
