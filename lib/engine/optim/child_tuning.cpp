#include "lib/engine/optim/child_tuning.hpp"

#include <ATen/ops/full.h>

#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

/// Views x as [num_rows, elements of a row]; a vector has rows of one element.
at::Tensor as_rows(const at::Tensor& x, std::int64_t num_rows) { return x.narrow(0, 0, num_rows).view({num_rows, -1}); }

/// Finds the element at position `rank` in the ascending order of all ranks' elements.
class OrderStatistic {
 public:
  OrderStatistic(const Ops& ops, const std::vector<GradPart>& parts, ProcessGroup& ranks, std::int64_t rank) {
    // The bit patterns of non-negative floats have the same order as the floats.
    for (const auto& [shift, bits] : {std::pair(21, 11), std::pair(10, 11), std::pair(0, 10)}) {
      std::vector<double> counts(std::size_t{1} << bits, 0.0);
      for (const auto& part : parts) ops.count_bits(part, {bits_, shift, bits}, counts);
      ranks.all_reduce(counts, Reduce::sum);
      std::size_t digit = 0;
      for (; digit + 1 < counts.size(); ++digit) {
        const auto here = static_cast<std::int64_t>(counts[digit]);
        if (rank < here) break;
        rank -= here;
        below_ += here;
      }
      bits_ = bits_ << bits | static_cast<std::uint32_t>(digit);
    }
  }
  float value() const { return std::bit_cast<float>(bits_); }
  /// Number of elements that are smaller than the found one.
  std::int64_t below() const { return below_; }

 private:
  std::uint32_t bits_ = 0;
  std::int64_t below_ = 0;
};

}  // namespace

void mask_at_random(const Ops& ops, const OptimizerParam& param, const at::Tensor& gradient,
                    const ChildTuningOptions& options, std::int64_t step) {
  const auto& layout = param.layout;
  const auto& range = param.range;
  if (!layout.trainable || range.num_rows == 0) return;
  const MemoryScope scope(MemoryCategory::workspace);
  // The key depends on the row's index in the whole parameter, so sharding does not change the mask.
  const auto stream =
      splitmix64(splitmix64(options.seed) ^ fnv1a(layout.name)) ^ splitmix64_output(static_cast<std::uint64_t>(step));
  const auto first = stream + static_cast<std::uint64_t>(range.first_row) * kSplitmix64Step;
  const auto key = at::full({1}, static_cast<std::int64_t>(first), at::TensorOptions(at::kLong).device(ops.host()));
  auto rows = as_rows(gradient, range.num_rows);
  ops.dropout(rows, ops.dropout_keys({key, 0}, range.num_rows, kSplitmix64Step), 1.0 - options.p);
}

bool chooses_child(const OptimizerParam& param) { return param.in_block && param.layout.trainable; }

ChildSummary choose_child(const Ops& ops, const std::vector<GradPart>& parts, double p, ProcessGroup& ranks) {
  ChildSummary child;
  double elements = 0;
  for (const auto& part : parts) elements += static_cast<double>(part.elements);
  child.elements = static_cast<std::int64_t>(ranks.all_reduce(elements, Reduce::sum));
  if (child.elements == 0) return child;
  const double place = static_cast<double>(child.elements - 1) * (1.0 - p);
  const auto lower = static_cast<std::int64_t>(std::floor(place));
  const double between = place - static_cast<double>(lower);
  const OrderStatistic low(ops, parts, ranks, lower);
  child.threshold = low.value();
  child.least_kept = low.value();
  auto below = low.below();
  child.wanted = child.elements - lower;
  if (between > 0) {
    const OrderStatistic high(ops, parts, ranks, lower + 1);
    child.threshold += between * (static_cast<double>(high.value()) - child.threshold);
    child.least_kept = high.value();
    below = high.below();
    --child.wanted;
  }
  child.kept = child.elements - below;
  return child;
}

}  // namespace fsdp
