// Collectives of one device alone, for machines without a library of collectives: copies on the current stream.

#include "lib/base/error.hpp"
#include "lib/engine/collectives/cuda/collectives_library.hpp"

namespace fsdp::detail {
namespace {

class SingleConnection final : public DeviceConnection {
 public:
  explicit SingleConnection(int device) : device_(device) {}
  int device() const override { return device_; }
  void check() override {}
  bool poll() override { return true; }

 private:
  int device_;
};

class CopyWork final : public Work {
 public:
  void wait() override {}
};

class SingleCollectives final : public TensorCollectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    for (const auto& [shard, full] : tensors) full.copy_(shard.view_as(full));
    return std::make_unique<CopyWork>();
  }
  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    for (const auto& [full, shard, accumulate] : tensors) {
      if (accumulate)
        shard.add_(full.view_as(shard));
      else
        shard.copy_(full.view_as(shard));
    }
    return std::make_unique<CopyWork>();
  }
  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    for (const auto& [in, out] : tensors) out.copy_(in.view_as(out));
    return std::make_unique<CopyWork>();
  }
  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> /*tensors*/) override {
    return std::make_unique<CopyWork>();
  }
};

ConnectedCollectives connect(ProcessGroup& group, int device, std::shared_ptr<const Ops> /*ops*/) {
  if (group.size() > 1) throw RuntimeFailure("this build has no collectives between GPUs: use one rank");
  return {.connection = std::make_shared<SingleConnection>(device),
          .collectives = std::make_unique<SingleCollectives>()};
}

}  // namespace

CollectivesLibrary collectives_library() { return {.name = "single", .built = {}, .version = {}, .connect = connect}; }

}  // namespace fsdp::detail
