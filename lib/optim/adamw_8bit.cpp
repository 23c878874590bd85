// AdamW whose moments take 8 bits, as bitsandbytes keeps them; what a block is, and what is kept in 8 bits at all, the
// whole parameter decides.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/optim/kinds.hpp"
#include "lib/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

constexpr auto kBlock = kEightBitBlock;
const std::string kPrefix = "__bnb_optimizer_quant_state__.";

/// Elements of a parameter that one rank has, and the blocks they are in.
struct Elements {
  Elements(const ParamLayout& layout, const ShardRange& range)
      : begin(range.first_row * layout.row_elements()), count(range.num_rows * layout.row_elements()) {}
  std::int64_t end() const { return begin + count; }
  std::int64_t first_block() const { return begin / kBlock; }
  /// Behind the last one.
  std::int64_t end_block() const { return count == 0 ? first_block() : (end() + kBlock - 1) / kBlock; }
  std::int64_t num_blocks() const { return end_block() - first_block(); }

  std::int64_t begin, count;
};

class AdamW8bit final : public Optimizer {
 public:
  explicit AdamW8bit(OptimizerInput input) : Optimizer(std::move(input)) {
    for (std::size_t i = 0; i < num_params(); ++i) {
      const bool eight_bit = is_quantized(i);
      for (const char* number : {"1", "2"}) {
        add_state(i, kPrefix + "state" + number, eight_bit ? at::kByte : at::kFloat);
        if (!eight_bit) continue;
        add_block_state(i, number);
        add_constant(i, kPrefix + "qmap" + number, eight_bit_numbers(*number == '1'));
      }
    }
  }

  std::string name() const override { return "AdamW8bit"; }
  StepState kind_of_step(std::size_t /*param*/) const override { return StepState::number; }
  nlohmann::json group_fields() const override {
    return {{"betas", {options().beta1, options().beta2}}, {"eps", options().eps}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    const MemoryScope scope(MemoryCategory::workspace);
    std::vector<std::size_t> wide, narrow_params;
    std::vector<AdamW8bitUpdate> updates;
    for (std::size_t n = 0; n < params.size(); ++n) {
      if (is_quantized(params[n])) {
        updates.push_back(update_of(group, n, params[n]));
        narrow_params.push_back(params[n]);
      } else {
        wide.push_back(n);
      }
    }
    adamw_update(group, params, wide, {kPrefix + "state1", kPrefix + "state2"});
    share_edges(updates, narrow_params);
    for (const auto& one : updates) ops().adamw_8bit(one);
  }

 private:
  bool is_quantized(std::size_t i) const {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    const auto& ours = options().eight_bit;
    const bool fit = ours.everything || (layout.shape.size() == 2 && !embedding);
    return fit && layout.elements() >= ours.least_elements;
  }

  void add_block_state(std::size_t i, const std::string& number) {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    const Elements mine(layout, range);
    const auto all = (layout.elements() + kBlock - 1) / kBlock;
    // Of a block that began on another rank this one has a copy.
    const auto others = mine.count > 0 && mine.begin % kBlock != 0 ? 1 : 0;
    add_rows(i, {kPrefix + "absmax" + number, {all}, {}, mine.first_block(), mine.num_blocks(), others}, at::kFloat);
  }

  /// This rank's elements, flat.
  AdamW8bitUpdate update_of(const UpdateGroup& group, std::size_t n, std::size_t i) const {
    const auto flat = [&](const at::Tensor& x) { return x.narrow(0, 0, param(i).range.num_rows).view({-1}); };
    AdamW8bitUpdate u;
    u.param = flat(group.params[n]);
    u.grad = flat(group.grads[n]);
    u.state1 = flat(state(kPrefix + "state1", i));
    u.state2 = flat(state(kPrefix + "state2", i));
    u.absmax1 = state(kPrefix + "absmax1", i);
    u.absmax2 = state(kPrefix + "absmax2", i);
    u.first_element = Elements(param(i).layout, param(i).range).begin;
    u.lr = group.lr;
    u.weight_decay = group.weight_decay;
    u.grad_divisor = group.grad_divisor;
    u.beta1 = options().beta1;
    u.beta2 = options().beta2;
    u.eps = options().eps;
    u.step = group.step;
    return u;
  }

  /// Whether a block lies on several ranks.
  bool has_split_blocks(std::size_t i) const {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    return num_ranks() > 1 && range.padded_rows * layout.row_elements() % kBlock != 0;
  }

  /// Ranks that have parts of a block find its largest moments together.
  void share_edges(std::vector<AdamW8bitUpdate>& updates, const std::vector<std::size_t>& params) const {
    std::vector<std::size_t> split;
    for (std::size_t n = 0; n < updates.size(); ++n) {
      if (has_split_blocks(params[n])) split.push_back(n);
    }
    if (split.empty()) return;
    const auto options = updates.front().param.options().dtype(at::kDouble);
    // [parameter, rank, first or last block, moment]: each rank writes its own, the sum is all.
    const auto all = at::zeros({static_cast<std::int64_t>(split.size()), num_ranks(), 2, 2}, options);
    for (std::size_t s = 0; s < split.size(); ++s)
      ops().adamw_8bit_edges(updates[split[s]], all[static_cast<std::int64_t>(s)][rank()]);
    sum_over_ranks(all);
    for (std::size_t s = 0; s < split.size(); ++s) {
      auto& u = updates[split[s]];
      u.edges = at::zeros({2, 2}, options);
      largest_of_ranks(params[split[s]], all[static_cast<std::int64_t>(s)].view({-1, 2}), u.edges);
    }
  }

  /// \param of_ranks  [2 * ranks, moments]  \param edges  [2, moments], of this rank's first and last block
  void largest_of_ranks(std::size_t i, const at::Tensor& of_ranks, const at::Tensor& edges) const {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    const Elements mine(layout, range);
    if (mine.count == 0) return;
    for (const auto edge : {0, 1}) {
      const auto block = edge == 0 ? mine.first_block() : mine.end_block() - 1;
      for (int other = 0; other < num_ranks(); ++other) {
        const Elements theirs(layout, shard_range(layout.rows(), num_ranks(), other));
        if (theirs.count == 0) continue;
        const auto take = [&](std::int64_t theirs_block, std::int64_t row) {
          if (theirs_block == block) edges[edge].copy_(at::maximum(edges[edge], of_ranks[row]));
        };
        take(theirs.first_block(), 2 * other);
        take(theirs.end_block() - 1, 2 * other + 1);
      }
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw_8bit(OptimizerInput input) {
  return std::make_unique<AdamW8bit>(std::move(input));
}

}  // namespace fsdp
