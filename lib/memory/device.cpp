#include "lib/memory/device.hpp"

#include <ATen/ops/empty.h>

#include <vector>

#include "lib/memory/meta_ops.hpp"
#include "lib/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

/// Holds tensors until wait(), as NCCL's transfers do.
class FakeWork final : public Work {
 public:
  explicit FakeWork(std::vector<at::Tensor> kept) : kept_(std::move(kept)) {}
  void wait() override { kept_.clear(); }

 private:
  std::vector<at::Tensor> kept_;
};

class FakeCollectives final : public TensorCollectives {
 public:
  FakeCollectives(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    std::vector<at::Tensor> kept;
    for (const auto& [shard, full] : tensors) kept.insert(kept.end(), {shard, full});
    return std::make_unique<FakeWork>(std::move(kept));
  }
  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    const MemoryScope scope(MemoryCategory::reduce_buffers);
    std::vector<at::Tensor> kept;
    for (const auto& [full, shard, accumulate] : tensors) {
      kept.insert(kept.end(), {full, shard});
      if (accumulate || full.scalar_type() != at::kFloat) kept.push_back(at::empty(shard.sizes(), full.options()));
    }
    return std::make_unique<FakeWork>(std::move(kept));
  }
  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    std::vector<at::Tensor> kept;
    for (const auto& [in, out] : tensors) kept.insert(kept.end(), {in, out});
    return std::make_unique<FakeWork>(std::move(kept));
  }
  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> tensors) override {
    return std::make_unique<FakeWork>(std::vector<at::Tensor>(tensors.begin(), tensors.end()));
  }

 private:
  int rank_;
  int size_;
};

class MetaBackend final : public DeviceBackend {
 public:
  MetaBackend(GpuSpec gpu, std::shared_ptr<MemoryTape> tape) : gpu_(std::move(gpu)), tape_(std::move(tape)) {}
  int device_count() const override { return 1; }
  std::unique_ptr<TensorCollectives> make_collectives(ProcessGroup& group, int) override {
    return std::make_unique<FakeCollectives>(group.rank(), group.size());
  }
  std::unique_ptr<Ops> make_ops(int) override { return make_meta_cuda_ops(tape_, gpu_); }
  void set_device(int) override {}
  DeviceInfo info(int) const override {
    DeviceInfo info;
    info.name = gpu_.name;
    info.compute_major = gpu_.compute_capability / 10;
    info.compute_minor = gpu_.compute_capability % 10;
    info.multiprocessors = gpu_.multiprocessors;
    info.total_bytes = gpu_.total_bytes;
    return info;
  }
  DeviceMemory memory(int) const override { return {}; }
  std::int64_t free_bytes(int) const override { return gpu_.total_bytes; }
  void reset_peak(int) override {}
  std::shared_ptr<void> hold_memory(int, std::int64_t) override { return nullptr; }
  void synchronize(int) override {}

 private:
  GpuSpec gpu_;
  std::shared_ptr<MemoryTape> tape_;
};

class LoneBackend final : public DeviceBackend {
 public:
  explicit LoneBackend(std::shared_ptr<DeviceBackend> gpu) : gpu_(std::move(gpu)) {}
  int device_count() const override { return gpu_->device_count(); }
  std::unique_ptr<TensorCollectives> make_collectives(ProcessGroup& group, int) override {
    return std::make_unique<FakeCollectives>(group.rank(), group.size());
  }
  std::unique_ptr<Ops> make_ops(int device) override { return gpu_->make_ops(device); }
  void set_device(int device) override { gpu_->set_device(device); }
  DeviceInfo info(int device) const override { return gpu_->info(device); }
  DeviceMemory memory(int device) const override { return gpu_->memory(device); }
  std::int64_t free_bytes(int device) const override { return gpu_->free_bytes(device); }
  void reset_peak(int device) override { gpu_->reset_peak(device); }
  std::shared_ptr<void> hold_memory(int device, std::int64_t bytes) override {
    return gpu_->hold_memory(device, bytes);
  }
  void synchronize(int device) override { gpu_->synchronize(device); }

 private:
  std::shared_ptr<DeviceBackend> gpu_;
};

}  // namespace

std::shared_ptr<DeviceBackend> make_lone_backend(std::shared_ptr<DeviceBackend> gpu) {
  return std::make_shared<LoneBackend>(std::move(gpu));
}

DeviceChoice make_meta_device(const std::optional<GpuSpec>& gpu, const std::shared_ptr<MemoryTape>& tape, int threads) {
  DeviceChoice device;
  device.device = at::Device(at::kMeta);
  device.has_values = false;
  if (gpu) {
    device.backend = std::make_shared<MetaBackend>(*gpu, tape);
  } else {
    device.ops = make_meta_cpu_ops(tape, threads);
  }
  return device;
}

}  // namespace fsdp
