// TensorCollectives through host memory, and those of a group of one rank.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <stdexcept>
#include <vector>

#include "lib/engine/collectives/tensor_collectives.hpp"

namespace fsdp {
namespace {

std::unique_ptr<Work> done() { return std::make_unique<DoneWork>(); }

void require_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() != b.numel()) throw std::logic_error("a group of one: what is sent and what arrives differ in size");
}

/// Does nothing if both tensors are the same memory.
void copy(const at::Tensor& to, const at::Tensor& from) {
  require_alike(to, from);
  const bool same_place =
      to.is_alias_of(from) && to.storage_offset() == from.storage_offset() && to.scalar_type() == from.scalar_type();
  if (!same_place && to.numel() > 0) to.view({-1}).copy_(from.view({-1}));
}

class LoneCollectives final : public TensorCollectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    for (const auto& [shard, full] : tensors) copy(full, shard);
    return done();
  }
  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    for (const auto& [full, shard, accumulate] : tensors) {
      if (!accumulate) {
        copy(shard, full);
      } else {
        require_alike(shard, full);
        shard.view({-1}).add_(full.view({-1}));
      }
    }
    return done();
  }
  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    for (const auto& [in, out] : tensors) copy(out, in);
    return done();
  }
  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor>) override { return done(); }
};

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

at::Tensor host_twin(const Ops& ops, const at::Tensor& tensor) {
  return ops.is_on_host(tensor) ? tensor : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

void copy_back(const at::Tensor& to, const at::Tensor& from) {
  if (to.unsafeGetTensorImpl() != from.unsafeGetTensorImpl()) to.copy_(from);
}

/// out (+)= sum of `ranks` equal slices that lie one after the other in `slices`.
void sum_slices(const Ops& ops, const at::Tensor& out, const at::Tensor& slices, int ranks, bool accumulate) {
  const auto bytes = static_cast<std::size_t>(slices.nbytes()) / static_cast<std::size_t>(ranks);
  std::vector<const void*> sources;
  for (int r = 0; r < ranks; ++r) {
    sources.push_back(static_cast<const std::byte*>(slices.const_data_ptr()) + static_cast<std::size_t>(r) * bytes);
  }
  ops.sum_sources(out, out.numel(), sources, slices.scalar_type(), accumulate);
}

class ArrivingWork final : public Work {
 public:
  ArrivingWork(std::unique_ptr<Work> work, std::vector<TensorGather> targets, std::vector<at::Tensor> staged_in,
               std::vector<at::Tensor> staged_out)
      : work_(std::move(work)),
        targets_(std::move(targets)),
        staged_in_(std::move(staged_in)),
        staged_out_(std::move(staged_out)) {}
  void wait() override {
    work_->wait();
    for (std::size_t i = 0; i < targets_.size(); ++i) copy_back(targets_[i].full, staged_out_[i]);
    staged_in_.clear();
    staged_out_.clear();
  }

 private:
  std::unique_ptr<Work> work_;
  std::vector<TensorGather> targets_;
  std::vector<at::Tensor> staged_in_;
  std::vector<at::Tensor> staged_out_;
};

class ReduceWork final : public Work {
 public:
  ReduceWork(const Ops& ops, std::unique_ptr<Work> work, std::vector<TensorReduce> targets,
             std::vector<at::Tensor> sent, std::vector<at::Tensor> received, int ranks)
      : ops_(ops),
        work_(std::move(work)),
        targets_(std::move(targets)),
        sent_(std::move(sent)),
        received_(std::move(received)),
        ranks_(ranks) {}
  void wait() override {
    work_->wait();
    sent_.clear();
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto& shard = targets_[i].shard;
      const bool is_float = shard.scalar_type() == at::kFloat;
      const auto sum = is_float ? ops_.to_host(shard) : at::empty(shard.sizes(), at::TensorOptions(at::kFloat));
      sum_slices(ops_, sum, received_[i], ranks_, targets_[i].accumulate);
      copy_back(shard, sum);
    }
    received_.clear();
  }

 private:
  const Ops& ops_;
  std::unique_ptr<Work> work_;
  std::vector<TensorReduce> targets_;
  std::vector<at::Tensor> sent_;
  std::vector<at::Tensor> received_;
  int ranks_;
};

class HostCollectives final : public TensorCollectives {
 public:
  HostCollectives(ProcessGroup& group, const Ops& ops) : group_(group), ops_(ops) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    return transfer<GatherBlock>({tensors.begin(), tensors.end()},
                                 [&](const auto& blocks) { return group_.all_gather(blocks); });
  }

  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    std::vector<ExchangeBlock> blocks;
    std::vector<at::Tensor> in;
    std::vector<at::Tensor> out;
    for (const auto& tensor : tensors) {
      in.push_back(ops_.to_host(tensor.full));
      out.push_back(at::empty({in.back().numel()}, in.back().options()));
      blocks.push_back({bytes_of(in.back()), bytes_of(out.back())});
    }
    auto work = group_.all_to_all(blocks);
    return std::make_unique<ReduceWork>(ops_, std::move(work), std::vector(tensors.begin(), tensors.end()),
                                        std::move(in), std::move(out), size());
  }

  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    std::vector<TensorGather> targets;
    for (const auto& [in, out] : tensors) targets.push_back({in, out});
    return transfer<ExchangeBlock>(std::move(targets), [&](const auto& blocks) { return group_.all_to_all(blocks); });
  }

  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> tensors) override {
    if (size() == 1 || tensors.empty()) return std::make_unique<DoneWork>();
    // Join all tensors to one flat buffer, padded so that every rank sums an equal slice, and all-gather the sums.
    std::int64_t total = 0;
    for (const auto& tensor : tensors) total += tensor.numel();
    const std::int64_t slice = (total + size() - 1) / size();
    auto flat = at::empty({slice * size()}, tensors.front().options());
    std::int64_t at_element = 0;
    for (const auto& tensor : tensors) {
      flat.narrow(0, at_element, tensor.numel()).copy_(tensor.reshape({-1}));
      at_element += tensor.numel();
    }
    flat.narrow(0, at_element, flat.numel() - at_element).zero_();
    const TensorGather gather{sum_of_slice(flat), flat};
    all_gather(std::span(&gather, 1))->wait();
    at_element = 0;
    for (const auto& tensor : tensors) {
      tensor.copy_(flat.narrow(0, at_element, tensor.numel()).view(tensor.sizes()));
      at_element += tensor.numel();
    }
    return std::make_unique<DoneWork>();
  }

 private:
  /// Through the host's memory where the tensors are elsewhere. \param start  the group's transfer of the blocks
  template <typename Block, typename Start>
  std::unique_ptr<Work> transfer(std::vector<TensorGather> targets, const Start& start) {
    std::vector<Block> blocks;
    std::vector<at::Tensor> in;
    std::vector<at::Tensor> out;
    for (const auto& [from, to] : targets) {
      in.push_back(ops_.to_host(from));
      out.push_back(host_twin(ops_, to));
      blocks.push_back({bytes_of(in.back()), bytes_of(out.back())});
    }
    auto work = start(blocks);
    return std::make_unique<ArrivingWork>(std::move(work), std::move(targets), std::move(in), std::move(out));
  }

  /// This rank's slice of the sum.
  at::Tensor sum_of_slice(const at::Tensor& flat) {
    const auto slice = flat.numel() / size();
    if (flat.scalar_type() == at::kDouble) {
      const auto from = ops_.to_host(flat);
      auto received = at::empty_like(from);
      const ExchangeBlock block{bytes_of(from), bytes_of(received)};
      group_.all_to_all(std::span(&block, 1))->wait();
      return received.view({size(), slice}).sum(0).to(flat.device());
    }
    auto sum = at::empty({slice}, flat.options().dtype(at::kFloat));
    const TensorReduce reduce{flat, sum, false};
    reduce_scatter(std::span(&reduce, 1))->wait();
    return sum.to(flat.scalar_type());
  }

  ProcessGroup& group_;
  const Ops& ops_;
};

}  // namespace

std::unique_ptr<TensorCollectives> make_lone_collectives() { return std::make_unique<LoneCollectives>(); }

std::unique_ptr<TensorCollectives> make_host_collectives(ProcessGroup& group, const Ops& ops) {
  return std::make_unique<HostCollectives>(group, ops);
}

}  // namespace fsdp
