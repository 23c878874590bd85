// AdamW and Lion with moments in 8 or 4 bits, stored as bitsandbytes and torchao store them. Block boundaries, and
// whether a parameter is quantised at all, depend on the whole parameter, not on its shards.
#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {
namespace {

/// Names of a moment's states.
struct MomentKeys {
  std::string wide;  ///< name of the float32 state of a parameter that is not quantised
  std::string codes, scales, numbers;
};

MomentKeys keys_of(MomentFormat format, bool is_first) {
  if (format == MomentFormat::bitsandbytes_8bit) {
    const std::string prefix = "__bnb_optimizer_quant_state__.", number = is_first ? "1" : "2";
    const auto state = prefix + "state" + number;
    return {state, state, prefix + "absmax" + number, prefix + "qmap" + number};
  }
  const std::string name = is_first ? "exp_avg" : "exp_avg_sq";
  return {name, name + ".codes", name + ".scale", name + ".qmap"};
}

MomentFormat format_of(std::string_view kind) {
  if (kind == "torchao-adamw8bit") return MomentFormat::torchao_8bit;
  return kind == "torchao-adamw4bit" ? MomentFormat::torchao_4bit : MomentFormat::bitsandbytes_8bit;
}

/// The elements of a parameter on one rank, and the blocks that contain them.
struct Elements {
  Elements(const ParamLayout& layout, const ShardRange& range, std::int64_t elements_of_block)
      : begin(range.first_row * layout.row_elements()),
        count(range.num_rows * layout.row_elements()),
        block(elements_of_block) {}
  std::int64_t end() const { return begin + count; }
  std::int64_t first_block() const { return begin / block; }
  /// One past the last block.
  std::int64_t end_block() const { return count == 0 ? first_block() : (end() + block - 1) / block; }
  std::int64_t num_blocks() const { return end_block() - first_block(); }

  std::int64_t begin, count, block;
};

class Blockwise final : public Optimizer {
 public:
  explicit Blockwise(OptimizerInput input) : Optimizer(std::move(input)), format_(format_of(options().kind)) {
    moments_.push_back(keys_of(format_, true));
    if (!is_lion()) moments_.push_back(keys_of(format_, false));
    for (std::size_t i = 0; i < num_params(); ++i) {
      for (std::size_t m = 0; m < moments_.size(); ++m) add_moment(i, moments_[m], m == 0);
    }
  }

  std::string name() const override {
    if (is_lion()) return "Lion8bit";
    return format_ == MomentFormat::torchao_4bit ? "AdamW4bit" : "AdamW8bit";
  }
  StepState kind_of_step(std::size_t /*param*/) const override {
    return format_ == MomentFormat::bitsandbytes_8bit ? StepState::number : StepState::tensor;
  }
  nlohmann::json group_fields() const override {
    nlohmann::json fields{{"betas", {options().beta1, options().beta2}}, {"eps", is_lion() ? 0.0 : options().eps}};
    if (format_ != MomentFormat::bitsandbytes_8bit) fields["amsgrad"] = false;
    return fields;
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    const MemoryScope scope(MemoryCategory::workspace);
    std::vector<std::size_t> wide, narrow_params;
    std::vector<BlockwiseUpdate> updates;
    for (std::size_t n = 0; n < params.size(); ++n) {
      if (is_quantized(params[n])) {
        updates.push_back(update_of(group, n, params[n]));
        narrow_params.push_back(params[n]);
      } else {
        wide.push_back(n);
      }
    }
    update_wide(group, params, wide);
    share_edges(updates, narrow_params);
    for (const auto& one : updates) ops().blockwise(one);
  }

 private:
  bool is_lion() const { return options().kind == "lion8bit"; }
  bool is_packed() const { return format_ == MomentFormat::torchao_4bit; }
  std::int64_t block() const { return moment_block(format_); }

  bool is_quantized(std::size_t i) const {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    const auto& ours = options().eight_bit;
    const bool fit = ours.everything || (layout.shape.size() == 2 && !embedding);
    if (!fit || layout.elements() < ours.least_elements) return false;
    // torchao has no incomplete blocks; and a byte with two 4-bit codes must not span two ranks.
    const bool whole_blocks = format_ == MomentFormat::bitsandbytes_8bit || layout.elements() % block() == 0;
    return whole_blocks && (!is_packed() || layout.row_elements() % 2 == 0);
  }

  void add_moment(std::size_t i, const MomentKeys& keys, bool is_first) {
    if (!is_quantized(i)) return add_state(i, keys.wide);
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    const Elements local_elements(layout, range, block());
    if (is_packed()) {
      add_rows(i, {keys.codes, {layout.elements() / 2}, {}, local_elements.begin / 2, local_elements.count / 2},
               at::kByte);
    } else {
      add_state(i, keys.codes, at::kByte);
    }
    const auto all = (layout.elements() + block() - 1) / block();
    // A block that began on another rank has its scale on both ranks.
    const auto others = local_elements.count > 0 && local_elements.begin % block() != 0 ? 1 : 0;
    add_rows(i, {keys.scales, {all}, {}, local_elements.first_block(), local_elements.num_blocks(), others},
             at::kFloat);
    add_constant(i, keys.numbers, moment_numbers(format_, is_first));
  }

  void update_wide(const UpdateGroup& group, const std::vector<std::size_t>& params,
                   const std::vector<std::size_t>& members) const {
    if (members.empty()) return;
    if (!is_lion()) return adamw_update(group, params, members, {moments_[0].wide, moments_[1].wide});
    const auto [chosen, chosen_params] = choose(group, params, members);
    ops().update(lion_update(chosen, states(moments_[0].wide, chosen_params), options()));
  }

  /// Describes the update of this rank's elements as flat tensors.
  BlockwiseUpdate update_of(const UpdateGroup& group, std::size_t n, std::size_t i) const {
    const auto flat = [&](const at::Tensor& x) { return x.narrow(0, 0, param(i).range.num_rows).view({-1}); };
    const auto moment = [&](const MomentKeys& keys) -> BlockwiseMoment {
      const auto codes = state(keys.codes, i);
      return {is_packed() ? codes : flat(codes), state(keys.scales, i)};
    };
    BlockwiseUpdate u;
    u.lion = is_lion();
    u.format = format_;
    u.param = flat(group.params[n]);
    u.grad = flat(group.grads[n]);
    u.first = moment(moments_[0]);
    if (!is_lion()) u.second = moment(moments_[1]);
    u.first_element = Elements(param(i).layout, param(i).range, block()).begin;
    u.lr = group.lr;
    u.weight_decay = group.weight_decay;
    u.grad_divisor = group.grad_divisor;
    u.beta1 = options().beta1;
    u.beta2 = options().beta2;
    u.eps = options().eps;
    u.step = group.step;
    return u;
  }

  /// Whether some blocks span several ranks.
  bool has_split_blocks(std::size_t i) const {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    return num_ranks() > 1 && range.padded_rows * layout.row_elements() % block() != 0;
  }

  /// Computes the largest moments of blocks that span several ranks, together with these ranks.
  void share_edges(std::vector<BlockwiseUpdate>& updates, const std::vector<std::size_t>& params) const {
    std::vector<std::size_t> split;
    for (std::size_t n = 0; n < updates.size(); ++n) {
      if (has_split_blocks(params[n])) split.push_back(n);
    }
    if (split.empty()) return;
    const auto options = updates.front().param.options().dtype(at::kDouble);
    // [parameter, rank, first or last block, moment]: each rank fills in its own entries, and the sum combines them.
    const auto all = at::zeros({std::ssize(split), num_ranks(), 2, 2}, options);
    for (std::size_t s = 0; s < split.size(); ++s)
      ops().blockwise_edges(updates[split[s]], all[static_cast<std::int64_t>(s)][rank()]);
    sum_over_ranks(all);
    for (std::size_t s = 0; s < split.size(); ++s) {
      auto& u = updates[split[s]];
      u.edges = at::zeros({2, 2}, options);
      largest_of_ranks(params[split[s]], all[static_cast<std::int64_t>(s)].view({-1, 2}), u.edges);
    }
  }

  /// \param of_ranks  [2 * ranks, moments], of all ranks' first and last blocks
  /// \param edges  [2, moments], receives the maxima for this rank's first and last block
  void largest_of_ranks(std::size_t i, const at::Tensor& of_ranks, const at::Tensor& edges) const {
    const auto& [master_weight, decay, layout, range, embedding, in_block] = param(i);
    const Elements local_elements(layout, range, block());
    if (local_elements.count == 0) return;
    for (const auto edge : {0, 1}) {
      const auto at_edge = edge == 0 ? local_elements.first_block() : local_elements.end_block() - 1;
      for (int other = 0; other < num_ranks(); ++other) {
        const Elements theirs(layout, shard_range(layout.rows(), num_ranks(), other), block());
        if (theirs.count == 0) continue;
        const auto take = [&](std::int64_t theirs_block, std::int64_t row) {
          if (theirs_block == at_edge) edges[edge].copy_(at::maximum(edges[edge], of_ranks[row]));
        };
        take(theirs.first_block(), 2 * other);
        take(theirs.end_block() - 1, 2 * other + 1);
      }
    }
  }

  MomentFormat format_;
  std::vector<MomentKeys> moments_;
};

}  // namespace

std::unique_ptr<Optimizer> make_blockwise(OptimizerInput input) {
  return std::make_unique<Blockwise>(std::move(input));
}

}  // namespace fsdp
