#include <stdexcept>

#include "lib/engine/collectives/tensor_collectives.hpp"

namespace fsdp {
namespace {

std::unique_ptr<Work> done() { return std::make_unique<DoneWork>(); }

void require_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() != b.numel()) throw std::logic_error("a group of one: what is sent and what arrives differ in size");
}

/// What already lies where it is to go stays.
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

}  // namespace

std::unique_ptr<TensorCollectives> make_lone_collectives() { return std::make_unique<LoneCollectives>(); }

}  // namespace fsdp
