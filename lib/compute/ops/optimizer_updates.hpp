#pragma once
// One update of a group of parameters that share everything but their data: what optimizers ask an Ops for.
//
// params are float32 master weights; states have their shapes, float32 but where another type is named. All tensors of
// a group are on one device and contiguous. Gradients are float32 and divided by grad_divisor first: clipping and the
// loss scale cost no pass of their own.
#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <span>
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
  /// Of StepDecider::decide(), in grad_divisor's place; undefined: none. AdamW's alone.
  at::Tensor decision = {};
  /// With a decision, by parameter: the same rows in the type that models read, written in the same pass; undefined:
  /// none.
  std::vector<at::Tensor> published = {};
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
/// it is kept in, also that of params, which may be bf16; with `compensation`, bf16, the rounding of a parameter's
/// update is kept for the next one (Kahan).
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

/// What AdamW and Lion keep moments as, in few bits.
using kernels::MomentFormat, kernels::moment_block;

/// The numbers that codes stand for, ascending: float32 [256] or [16] on the host, in memory that is nobody's to
/// change; first moments' or second ones'. bitsandbytes' states have them as qmap1 and qmap2, torchao's as qmap.
at::Tensor moment_numbers(MomentFormat format, bool is_signed);

/// This rank's elements, flat.
struct BlockwiseMoment {
  at::Tensor codes;   ///< uint8
  at::Tensor scales;  ///< float32, by block
};

/// One parameter of an update by AdamW or Lion whose moments are codes (kernels::MomentCode): blocks are counted from
/// the whole parameter's first element, so that a rank may share its first and its last one with others. Where codes
/// share a byte, this rank's elements begin and end with one.
struct BlockwiseUpdate {
  bool lion = false;
  MomentFormat format = MomentFormat::bitsandbytes_8bit;
  at::Tensor param, grad;         ///< float32
  BlockwiseMoment first, second;  ///< Lion has no second
  at::Tensor edges;  ///< float64 [2, 2]: largest moments of the first and of the last block; undefined: these are whole
  std::int64_t first_element = 0;
  double lr = 0, weight_decay = 0, grad_divisor = 1, beta1 = 0, beta2 = 0, eps = 0;
  std::int64_t step = 0;

  double step_size() const;   ///< lr / (1 - beta1^step)
  double correction() const;  ///< sqrt(1 - beta2^step)
};

/// One parameter of an update by Adafactor (Shazeer and Stern, 2018; torch/optim/_adafactor.py, transformers' class).
/// Its tensors are this rank's rows without padding; a matrix keeps the means of its rows' and columns' squared
/// gradients, anything else the squares themselves. Sums over the ranks are the caller's to make between the three
/// operations.
struct AdafactorUpdate {
  at::Tensor param, grad;
  at::Tensor row_var;                   ///< [rows], of a matrix
  at::Tensor col_var;                   ///< [columns], of a matrix; the same on all ranks
  at::Tensor variance;                  ///< of anything else
  at::Tensor exp_avg;                   ///< of updates; undefined: they are not averaged
  at::Tensor sums;                      ///< float64 [2 + columns]: of param^2, of row_var, and of grad^2 by column
  at::Tensor update_sum;                ///< float64 [1]: of the squares of the update
  std::int64_t rows = 0, elements = 0;  ///< of the whole parameter
  double rate = 0;                      ///< learning rate, relative to the parameter's size with scale_parameter
  bool scale_parameter = false;
  double weight_decay_factor = 1;  ///< 1 - lr * weight decay
  double relative_decay = 0;       ///< weight decay by the rate that results
  double grad_divisor = 1;
  double new_weight = 0;      ///< of this step's squares in the means
  double eps1 = 0;            ///< added to squares, or the least root of a mean; see square_eps()
  double eps2 = 0;            ///< least root mean square of a parameter that a rate is relative to
  double beta1 = 0;           ///< of exp_avg
  bool transformers = false;  ///< its order of operations
  /// What is added to squares.
  double square_eps() const { return transformers ? eps1 : 0; }
};

/// One matrix of an update by Muon (Jordan et al., 2024; torch/optim/_muon.py): this rank's rows of it. The direction
/// is grad + (1 - momentum) (old average - grad), twice: Nesterov's.
struct MuonUpdate {
  at::Tensor param, grad, momentum_buffer;  ///< float32
  double momentum = 0;
  double lr = 0, weight_decay = 0;
  double rate = 0;  ///< lr, adjusted to the matrix' shape
  double grad_divisor = 1;
};

// Steps that the host does not wait for: how far gradients are scaled down, and whether there is an update at all, is
// decided where they are, for Ops::adamw().

/// What a step is decided by: sums over all ranks, float64, on the device.
struct StepSums {
  at::Tensor squares;  ///< [1]: of the gradients, which are loss_scale times too large, once for each replica
  at::Tensor loss;     ///< [2]: nats and tokens
  int replicas = 1;
  double loss_scale = 1;
  double clip_norm = 0;  ///< largest norm of the gradients; 0: any
};

/// What it came to.
struct StepOutcome {
  double norm = 0;  ///< of the gradients as they are, loss_scale times too large
  double nats = 0;
  bool skipped = false;  ///< loss or gradients are not finite: nothing was updated
};

class StepDecider {
 public:
  virtual ~StepDecider() = default;
  /// Ops::sum_squares() as float64 [1] on the device.
  virtual at::Tensor device_sum_squares(std::span<const GradPart> parts) const = 0;
  /// \return for UpdateGroup::decision
  virtual at::Tensor decide(const StepSums& sums) const = 0;
  /// Waits for it.
  virtual StepOutcome outcome_of(const at::Tensor& decision) const = 0;
};

}  // namespace fsdp
