#pragma once
// Arguments of the optimizer updates of Ops, for a group of parameters with the same hyperparameters.
//
// params are float32 master weights; states have the shape of their parameter and are float32 unless stated otherwise.
// All tensors of a group are contiguous and on one device. Gradients are float32, on a device for AdamW and elementwise
// updates also bf16, and are divided by grad_divisor first, so that clipping and the loss scale need no pass of their
// own.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/compute/kernels/moment_code.hpp"
#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

struct UpdateGroup {
  std::vector<at::Tensor> params, grads;
  double lr = 0;
  double weight_decay = 0;
  double grad_divisor = 1;
  std::int64_t step = 0;  ///< counted from 1
  /// Result of Ops::decide(), which replaces grad_divisor; may be undefined. AdamW and elementwise
  /// updates on a device only.
  at::Tensor decision = {};
  /// With a decision: for each parameter its copy in the parameter dtype, written in the same pass; may be undefined.
  std::vector<at::Tensor> cast_params = {};
};

/// Loshchilov and Hutter, 2019; torch/optim/adamw.py.
struct AdamWUpdate : UpdateGroup {
  std::vector<at::Tensor> exp_avg, exp_avg_sq;
  double beta1 = 0, beta2 = 0, eps = 0;
};

/// One parameter of an ElementwiseUpdate: master weight, gradient divided by grad_divisor, and states.
struct UpdatedTensors {
  at::Tensor param;
  at::Tensor grad;  ///< may be overwritten
  std::vector<at::Tensor> states;
};

/// An update of each element by nothing but the element, its gradient and its states. An optimizer describes such an
/// update twice: as a kernel of the host, and as a formula for every other device, to which tests compare the kernel.
struct ElementwiseUpdate : UpdateGroup {
  std::vector<std::vector<at::Tensor>> states = {};  ///< by state, then by parameter
  std::string_view kernel = {};                      ///< name in kernels::Table::updates
  std::vector<float> numbers = {};                   ///< constants of the kernel, in its order (optim.hpp)
  std::function<void(const UpdatedTensors& tensors)> formula = {};  ///< updates param and states in place
};

/// Formats of quantized moments of AdamW and Lion.
using kernels::MomentFormat, kernels::moment_block;

/// \return the values of the codes, ascending: float32 [256] or [16] on the host, read-only. Checkpoints of
/// bitsandbytes call them qmap1 and qmap2, of torchao qmap. \param is_signed  first moments; false: second moments
at::Tensor moment_numbers(MomentFormat format, bool is_signed);

/// A quantized moment of this rank's elements of a parameter, flat.
struct BlockwiseMoment {
  at::Tensor codes;   ///< uint8
  at::Tensor scales;  ///< float32 [blocks]
};

/// An update of one parameter by AdamW or Lion with quantized moments (kernels::MomentCode). Blocks are counted from
/// the first element of the unsharded parameter, so a rank may share its first and last block with other ranks. With
/// 4-bit codes, the shard starts and ends at a byte boundary.
struct BlockwiseUpdate {
  bool lion = false;
  MomentFormat format = MomentFormat::bitsandbytes_8bit;
  at::Tensor param, grad;         ///< float32
  BlockwiseMoment first, second;  ///< second is unused with Lion
  at::Tensor edges;  ///< float64 [2, 2]: largest moments of the first and last block over all ranks; undefined: no
                     ///< block is shared
  std::int64_t first_element = 0;
  double lr = 0, weight_decay = 0, grad_divisor = 1, beta1 = 0, beta2 = 0, eps = 0;
  std::int64_t step = 0;

  double step_size() const;   ///< lr / (1 - beta1^step)
  double correction() const;  ///< sqrt(1 - beta2^step)
};

/// An update of one parameter by Adafactor (Shazeer and Stern, 2018; torch/optim/_adafactor.py, transformers'
/// Adafactor). Tensors are this rank's rows without padding. A matrix keeps running means of its squared gradients by
/// row and by column, other parameters one for each element. The caller all-reduces `sums` and `update_sum` between the
/// three operations.
struct AdafactorUpdate {
  at::Tensor param, grad;
  at::Tensor row_var;     ///< [rows]; matrices only
  at::Tensor col_var;     ///< [columns]; matrices only; equal on all ranks
  at::Tensor variance;    ///< shape of param; other parameters only
  at::Tensor exp_avg;     ///< running mean of updates; may be undefined
  at::Tensor sums;        ///< float64 [2 + columns]: sum of param^2, sum of row_var, column sums of grad^2
  at::Tensor update_sum;  ///< float64 [1]: sum of squares of the update
  std::int64_t rows = 0, elements = 0;  ///< of the whole parameter
  double rate = 0;                      ///< learning rate, relative to the parameter's size with scale_parameter
  bool scale_parameter = false;
  double weight_decay_factor = 1;  ///< 1 - lr * weight decay
  double relative_decay = 0;       ///< weight decay relative to the effective rate
  double grad_divisor = 1;
  double new_weight = 0;  ///< weight of this step's squares in the running means
  double eps1 = 0;   ///< transformers: added to squares, see square_eps(); torch: lower bound of mean(row_var); its
                     ///< square, of variances
  double eps2 = 0;   ///< lower bound of the parameter's root mean square, with scale_parameter
  double beta1 = 0;  ///< decay of exp_avg
  bool transformers = false;  ///< order of operations of transformers; false: of torch
  /// Added to squared gradients.
  double square_eps() const { return transformers ? eps1 : 0; }
};

/// An update of one matrix by Muon (Jordan et al., 2024; torch/optim/_muon.py), this rank's rows. The direction is
/// Nesterov's: lerp(grad, momentum_buffer, momentum), after momentum_buffer has been averaged with the gradient.
struct MuonUpdate {
  at::Tensor param, grad, momentum_buffer;  ///< float32
  double momentum = 0;
  double lr = 0, weight_decay = 0;
  double rate = 0;  ///< lr adjusted for the shape of the matrix
  double grad_divisor = 1;
};

/// Inputs of a step's decision: sums over all ranks, float64, on the device.
struct StepToDecide {
  at::Tensor squares;  ///< [1]: squares of the gradients, which include loss_scale, counted once for each replica
  at::Tensor sums;     ///< of the step, as StepSums::pending
  int replicas = 1;
  double loss_scale = 1;
  double clip_norm = 0;    ///< maximum gradient norm; 0: no clipping
  at::Tensor before = {};  ///< decision of the step before if the host does not know its outcome; else undefined
};

/// Result of a step's decision.
struct StepOutcome {
  double norm = 0;  ///< gradient norm, which includes loss_scale
  double nats = 0;
  bool skipped = false;  ///< loss or gradients, or those of StepToDecide::before, are not finite; nothing was updated
  bool loss_is_finite = true;
  std::vector<double> named = {};  ///< the step's named sums in their order
};

}  // namespace fsdp
