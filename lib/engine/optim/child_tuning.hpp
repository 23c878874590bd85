#pragma once
// Child-Tuning (Xu et al., EMNLP 2021, arXiv:2109.05687): only a subset of a network's elements, its child, receives
// gradients. Gradients are masked before the optimizer uses them, so this works with every optimizer; momentum and
// weight decay still apply to all elements, as in the authors' code (RunxinXu/ChildTuning, d0d8655).
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/base/types/named_values.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/engine/optim/optimizer_param.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

enum class ChildTuning {
  off,
  task_free,  ///< F: a new random child at every step; its gradients are scaled by 1/p
  /// D: a child chosen once: the elements of the blocks with the most Fisher information, and all elements outside the
  /// blocks
  task_driven
};

struct ChildTuningOptions {
  ChildTuning mode = ChildTuning::off;
  double p = 0.3;          ///< fraction of the elements that the child contains
  std::uint64_t seed = 0;  ///< seed for the children of task_free
};

/// With the names of the authors.
inline constexpr std::array kChildTunings{NamedValue<ChildTuning>{"off", ChildTuning::off},
                                          NamedValue<ChildTuning>{"f", ChildTuning::task_free},
                                          NamedValue<ChildTuning>{"d", ChildTuning::task_driven},
                                          NamedValue<ChildTuning>{"F", ChildTuning::task_free, false},
                                          NamedValue<ChildTuning>{"D", ChildTuning::task_driven, false},
                                          NamedValue<ChildTuning>{"ChildTuning-F", ChildTuning::task_free, false},
                                          NamedValue<ChildTuning>{"ChildTuning-D", ChildTuning::task_driven, false}};
inline std::string_view to_string(ChildTuning mode) { return name_of(kChildTunings, mode); }

/// For task_free: multiplies each element of a parameter's gradient by 1/p or 0, in place. The mask depends only on
/// seed, step, parameter and element. Does not access the gradient of a frozen parameter.
void mask_at_random(const Ops& ops, const OptimizerParam& param, const at::Tensor& gradient,
                    const ChildTuningOptions& options, std::int64_t step);

/// Keys of task_driven's states: float32 sums of squared gradients, later replaced by uint8 masks; and the parameters
/// that have them.
inline constexpr const char* kChildFisher = "child_fisher";
inline constexpr const char* kChildMask = "child_mask";
bool chooses_child(const OptimizerParam& param);

/// Result of choose_child().
struct ChildSummary {
  std::int64_t elements = 0;  ///< number of elements to choose from, over all ranks
  std::int64_t wanted = 0;    ///< number of elements that p asks for
  std::int64_t kept = 0;      ///< number of elements in the child; more than wanted when there are ties
  double threshold = 0;       ///< (1 - p)-quantile of the sums, interpolated as numpy.percentile() does
  float least_kept = 0;       ///< the smallest sum in the child
};

/// Chooses the child exactly, in three passes over the sums of all ranks. Collective.
/// \param parts  this rank's sums, of which the first `elements` of each part are valid
ChildSummary choose_child(const Ops& ops, const std::vector<GradPart>& parts, double p, ProcessGroup& ranks);

}  // namespace fsdp
