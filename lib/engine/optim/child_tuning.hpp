#pragma once
// Child-Tuning (Xu et al., EMNLP 2021, arXiv:2109.05687): gradients reach a part of a network's elements only, its
// child. Done to gradients before any optimizer sees them, so every optimizer can have it; momentum and weight decay go
// on for all elements, as in the authors' code (RunxinXu/ChildTuning, d0d8655).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/optim/optimizer_param.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

enum class ChildTuning {
  off,
  task_free,   ///< F: another random child at every step, its gradients scaled by 1/p
  task_driven  ///< D: the elements of the blocks with the most Fisher information, chosen once; all of what is outside
};

struct ChildTuningOptions {
  ChildTuning mode = ChildTuning::off;
  double p = 0.3;          ///< share of the elements that are in the child
  std::uint64_t seed = 0;  ///< of task_free's children
};

/// off, f or d, or the authors' ChildTuning-F and -D. \throws UsageError naming the choices
ChildTuning parse_child_tuning(std::string_view text);
std::string_view to_string(ChildTuning mode);

/// task_free: multiplies a parameter's gradient by 1/p or 0, in place. Which, depends on seed, step, parameter and
/// element, and on nothing else. That of a frozen one is not looked at.
void mask_at_random(const Ops& ops, const OptimizerParam& param, const at::Tensor& gradient,
                    const ChildTuningOptions& options, std::int64_t step);

/// task_driven: keys of its states, float32 sums of squared gradients and then uint8 masks, and who has them.
inline constexpr const char* kChildFisher = "child_fisher";
inline constexpr const char* kChildMask = "child_mask";
bool chooses_child(const OptimizerParam& param);

/// Result of choose_child().
struct ChildSummary {
  std::int64_t elements = 0;  ///< of all ranks, from which it was chosen
  std::int64_t wanted = 0;    ///< how many of them p asks for
  std::int64_t kept = 0;      ///< in the child: with ties, more
  double threshold = 0;       ///< (1 - p)-quantile of the sums, interpolated as numpy.percentile() does
  float least_kept = 0;       ///< the smallest sum that is in the child
};

/// Chooses the child exactly, in three passes over the sums of all ranks. Collective.
/// \param parts  this rank's sums; the first `elements` of each count
ChildSummary choose_child(const Ops& ops, const std::vector<GradPart>& parts, double p, ProcessGroup& ranks);

}  // namespace fsdp
