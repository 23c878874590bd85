#include "lib/planning/memory/device.hpp"

#include <ATen/ops/empty.h>

#include <vector>

#include "lib/compute/meta/meta_ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/ranks/fake_group.hpp"

namespace fsdp {
namespace {

/// Keeps the transfer's tensors alive until wait(), as NCCL's work objects do.
class FakeWork final : public Work {
 public:
  FakeWork(std::vector<at::Tensor> kept, std::shared_ptr<WorkLog> log, int id)
      : kept_(std::move(kept)), log_(std::move(log)), id_(id) {}
  void wait() override {
    kept_.clear();
    if (log_ != nullptr) log_->wait(id_);
  }

 private:
  std::vector<at::Tensor> kept_;
  std::shared_ptr<WorkLog> log_;
  int id_;
};

class FakeCollectives final : public TensorCollectives {
 public:
  /// \param log  null: transfers are not recorded
  FakeCollectives(ProcessGroup& group, std::shared_ptr<WorkLog> log)
      : rank_(group.rank()), size_(group.size()), place_(placement_of(group)), log_(std::move(log)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    std::vector<at::Tensor> kept;
    double bytes = 0;
    for (const auto& [shard, full] : tensors) {
      kept.insert(kept.end(), {shard, full});
      bytes += static_cast<double>(full.nbytes());
    }
    return start(TransferWork::Kind::gather, bytes, std::move(kept));
  }
  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    const MemoryScope scope(MemoryCategory::reduce_buffers);
    std::vector<at::Tensor> kept;
    double bytes = 0;
    for (const auto& [full, shard, accumulate] : tensors) {
      kept.insert(kept.end(), {full, shard});
      bytes += static_cast<double>(full.nbytes());
      if (accumulate || full.scalar_type() != shard.scalar_type())
        kept.push_back(at::empty(shard.sizes(), full.options()));
    }
    return start(TransferWork::Kind::reduce, bytes, std::move(kept));
  }
  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    std::vector<at::Tensor> kept;
    double bytes = 0;
    for (const auto& [in, out] : tensors) {
      kept.insert(kept.end(), {in, out});
      bytes += static_cast<double>(out.nbytes());
    }
    return start(TransferWork::Kind::gather, bytes, std::move(kept));
  }
  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> tensors) override {
    double bytes = 0;
    for (const auto& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
    return start(TransferWork::Kind::all_reduce, bytes, {tensors.begin(), tensors.end()});
  }

 private:
  std::unique_ptr<Work> start(TransferWork::Kind kind, double bytes, std::vector<at::Tensor> kept) {
    auto transfer = place_;
    transfer.kind = kind;
    transfer.bytes = bytes;
    const int id = log_ != nullptr ? log_->start(transfer) : 0;
    return std::make_unique<FakeWork>(std::move(kept), log_, id);
  }

  int rank_;
  int size_;
  TransferWork place_;
  std::shared_ptr<WorkLog> log_;
};

class MetaBackend final : public DeviceBackend {
 public:
  MetaBackend(GpuSpec gpu, std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work)
      : gpu_(std::move(gpu)), tape_(std::move(tape)), work_(std::move(work)) {}
  int device_count() const override { return 1; }
  std::unique_ptr<TensorCollectives> make_collectives(ProcessGroup& group, int) override {
    return std::make_unique<FakeCollectives>(group, work_);
  }
  std::unique_ptr<Ops> make_ops(int) override { return make_meta_cuda_ops(tape_, work_, gpu_); }
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
  void release_cached(int) override {}
  std::shared_ptr<void> hold_memory(int, std::int64_t) override { return nullptr; }
  void synchronize(int) override {}

 private:
  GpuSpec gpu_;
  std::shared_ptr<MemoryTape> tape_;
  std::shared_ptr<WorkLog> work_;
};

class LoneBackend final : public DeviceBackend {
 public:
  explicit LoneBackend(std::shared_ptr<DeviceBackend> gpu) : gpu_(std::move(gpu)) {}
  int device_count() const override { return gpu_->device_count(); }
  std::unique_ptr<TensorCollectives> make_collectives(ProcessGroup& group, int) override {
    return std::make_unique<FakeCollectives>(group, nullptr);
  }
  std::unique_ptr<Ops> make_ops(int device) override { return gpu_->make_ops(device); }
  void set_device(int device) override { gpu_->set_device(device); }
  DeviceInfo info(int device) const override { return gpu_->info(device); }
  DeviceMemory memory(int device) const override { return gpu_->memory(device); }
  std::int64_t free_bytes(int device) const override { return gpu_->free_bytes(device); }
  void reset_peak(int device) override { gpu_->reset_peak(device); }
  void release_cached(int device) override { gpu_->release_cached(device); }
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

DeviceChoice make_meta_device(const std::optional<GpuSpec>& gpu, const std::shared_ptr<MemoryTape>& tape,
                              const std::shared_ptr<WorkLog>& work, int threads) {
  DeviceChoice device;
  device.device = at::Device(at::kMeta);
  device.has_values = false;
  if (gpu) {
    device.backend = std::make_shared<MetaBackend>(*gpu, tape, work);
  } else {
    device.ops = make_meta_cpu_ops(tape, work, threads);
  }
  return device;
}

}  // namespace fsdp
