// TensorCollectives on NCCL. No function here makes the host wait for the device.

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/collectives/nccl/nccl_comm.hpp"

namespace fsdp::detail {
namespace {

using c10::cuda::CUDAStream;

/// A transfer in progress. The buffers usually need no recordStream. All buffers come from the caching allocator under
/// the compute stream. When a tensor is freed, the allocator may hand its memory to that stream's next kernel at once,
/// although the communicator's stream still uses it. Three orderings make this safe:
///   - the communicator's stream starts after an event recorded behind all compute queued when the collective is
///   issued,
///     so older kernels no longer use memory that was recycled for these buffers;
///   - until wait(), this object holds the tensors, so they cannot be freed;
///   - wait() queues the compute stream behind the transfer, so memory recycled afterwards is used afterwards.
/// Peak memory then depends on the schedule alone, not on the device's timing. Only this object's own buffers need
/// recordStream, and only when wait() is called under another stream than the issue; see below.
class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclComm> comm, std::shared_ptr<const Ops> ops, CUDAStream issued_on)
      : comm_(std::move(comm)), ops_(std::move(ops)), issued_on_(issued_on) {}
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;
  /// If the object is destroyed without wait() (during an exception), the tensors are freed while the transfer runs, so
  /// the stream that would recycle their memory must still be ordered behind the transfer.
  ~NcclWork() override {
    if (done_ != nullptr) static_cast<void>(cudaStreamWaitEvent(issued_on_.stream(), done_->get(), 0));
  }

  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  /// Registers a sum that arrives in the wire dtype and must be widened into its float32 shard.
  void add_arrival(WidenedRows arrival) { arrivals_.push_back(std::move(arrival)); }
  void started(std::shared_ptr<UniqueEvent> done) { done_ = std::move(done); }

  void wait() override {
    if (done_ == nullptr) return;
    const c10::cuda::CUDAGuard guard(issued_on_.device());
    comm_->check();
    const auto current = c10::cuda::getCurrentCUDAStream(issued_on_.device_index());
    done_->make_wait(current.stream());
    if (current != issued_on_) done_->make_wait(issued_on_.stream());
    done_.reset();
    ops_->widen(arrivals_);
    // The buffers return to the pool of the stream that allocated them, which does not wait for the current stream.
    for (const auto& arrival : arrivals_) {
      if (current != issued_on_)
        c10::cuda::CUDACachingAllocator::recordStream(arrival.from.storage().data_ptr(), current);
    }
    arrivals_.clear();
    kept_.clear();
  }

 private:
  std::shared_ptr<NcclComm> comm_;
  std::shared_ptr<const Ops> ops_;
  CUDAStream issued_on_;
  std::shared_ptr<UniqueEvent> done_;  ///< null before the start and after wait()
  std::vector<at::Tensor> kept_;
  std::vector<WidenedRows> arrivals_;
};

struct Transfer {
  const void* from;
  void* to;
  std::size_t count;  ///< elements per rank
  ncclDataType_t type;
};

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("NCCL collective: ") + what);
}

/// Tensors must be on the communicator's device. Work::wait() makes the current CUDA stream wait, not the host, so it
/// may be called long before the transfer has ended. A Work may be destroyed without wait().
///
/// NCCL sums gradients in the dtype of TensorReduce::full. Unlike in the host's collectives, the order of additions
/// depends on the number of ranks and on NCCL's choice of algorithm.
class NcclCollectives final : public TensorCollectives {
 public:
  NcclCollectives(std::shared_ptr<NcclComm> comm, std::shared_ptr<const Ops> ops)
      : comm_(std::move(comm)),
        ops_(std::move(ops)),
        device_(at::kCUDA, static_cast<c10::DeviceIndex>(comm_->device())) {}
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }

  std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) override {
    auto work = new_work();
    std::vector<Transfer> transfers;
    CollectiveLabel label{"all-gather", tensors.size(), 0};
    for (const auto& [shard, full] : tensors) {
      require_ours(shard);
      require_ours(full);
      require(full.scalar_type() == shard.scalar_type(), "shard and gathered tensor differ in dtype");
      require(full.numel() == shard.numel() * size(), "the gathered tensor must be size() shards");
      transfers.push_back({shard.const_data_ptr(), full.mutable_data_ptr(), static_cast<std::size_t>(shard.numel()),
                           nccl_type(shard.scalar_type())});
      label.bytes += static_cast<std::int64_t>(shard.nbytes());
      work->keep(shard);
      work->keep(full);
    }
    start(*work, label, [&transfers](ncclComm_t comm, cudaStream_t stream) {
      return each(transfers,
                  [&](const Transfer& t) { return ncclAllGather(t.from, t.to, t.count, t.type, comm, stream); });
    });
    return work;
  }

  std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) override {
    auto work = new_work();
    std::vector<Transfer> transfers;
    CollectiveLabel label{"reduce-scatter", tensors.size(), 0};
    for (const auto& [full, shard, accumulate] : tensors) {
      require_ours(full);
      require_ours(shard);
      require(shard.scalar_type() == at::kFloat, "gradient shards are float32");
      require(full.is_floating_point(), "only floating-point gradients can be summed");
      require(full.numel() == shard.numel() * size(), "the full gradient must be size() shards");
      at::Tensor target = shard;
      if (accumulate || full.scalar_type() != at::kFloat) {
        target = at::empty(shard.sizes(), full.options());
        work->add_arrival({shard, target, accumulate});
      }
      transfers.push_back({full.const_data_ptr(), target.mutable_data_ptr(), static_cast<std::size_t>(shard.numel()),
                           nccl_type(full.scalar_type())});
      label.bytes += static_cast<std::int64_t>(full.nbytes());
      work->keep(full);
      work->keep(shard);
    }
    start(*work, label, [&transfers](ncclComm_t comm, cudaStream_t stream) {
      return each(transfers, [&](const Transfer& t) {
        return ncclReduceScatter(t.from, t.to, t.count, t.type, ncclSum, comm, stream);
      });
    });
    return work;
  }

  std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) override {
    auto work = new_work();
    std::vector<Transfer> transfers;
    CollectiveLabel label{"all-to-all", tensors.size(), 0};
    for (const auto& [in, out] : tensors) {
      require_ours(in);
      require_ours(out);
      require(in.scalar_type() == out.scalar_type(), "what is sent and what arrives differ in dtype");
      require(in.numel() == out.numel() && in.numel() % size() == 0, "what is sent must be size() equal parts");
      transfers.push_back(
          {in.const_data_ptr(), out.mutable_data_ptr(), static_cast<std::size_t>(in.nbytes()) / ranks(), ncclInt8});
      label.bytes += static_cast<std::int64_t>(in.nbytes());
      work->keep(in);
      work->keep(out);
    }
    start(*work, label, [this, &transfers](ncclComm_t comm, cudaStream_t stream) {
      return each(transfers, [&](const Transfer& t) { return exchange(t, comm, stream); });
    });
    return work;
  }

  std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> tensors) override {
    auto work = new_work();
    std::vector<Transfer> transfers;
    CollectiveLabel label{"all-reduce", tensors.size(), 0};
    for (const auto& tensor : tensors) {
      require_ours(tensor);
      const auto type = tensor.scalar_type();
      require(type == at::kFloat || type == at::kDouble || type == at::kBFloat16,
              "all-reduce takes float32, float64 or bfloat16 tensors");
      auto* data = tensor.mutable_data_ptr();
      transfers.push_back({data, data, static_cast<std::size_t>(tensor.numel()), nccl_type(tensor.scalar_type())});
      label.bytes += static_cast<std::int64_t>(tensor.nbytes());
      work->keep(tensor);
    }
    start(*work, label, [&transfers](ncclComm_t comm, cudaStream_t stream) {
      return each(transfers, [&](const Transfer& t) {
        return ncclAllReduce(t.from, t.to, t.count, t.type, ncclSum, comm, stream);
      });
    });
    return work;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  /// Sends `count` elements to each rank and receives as many from each. Called inside an NCCL group, so that the calls
  /// do not wait for each other.
  ncclResult_t exchange(const Transfer& t, ncclComm_t comm, cudaStream_t stream) const {
    auto result = ncclSuccess;
    for (std::size_t r = 0; r < ranks() && (result == ncclSuccess || result == ncclInProgress); ++r) {
      const auto peer = static_cast<int>(r);
      result = ncclSend(static_cast<const char*>(t.from) + r * t.count, t.count, t.type, peer, comm, stream);
      if (result != ncclSuccess && result != ncclInProgress) break;
      result = ncclRecv(static_cast<char*>(t.to) + r * t.count, t.count, t.type, peer, comm, stream);
    }
    return result;
  }

  std::unique_ptr<NcclWork> new_work() const {
    return std::make_unique<NcclWork>(comm_, ops_, c10::cuda::getCurrentCUDAStream(device_.index()));
  }

  /// Call after the last allocation: older kernels could still use buffers allocated after the event.
  void start(NcclWork& work, const CollectiveLabel& label,
             const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& calls) {
    const c10::cuda::CUDAGuard guard(device_);
    const UniqueEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream(device_.index()).stream());
    work.started(comm_->submit(label, ready, calls));
  }

  /// Makes the calls, up to the first one that fails. ncclInProgress is not a failure; it is normal until the group
  /// closes.
  template <class Call>
  static ncclResult_t each(const std::vector<Transfer>& transfers, const Call& call) {
    for (const auto& transfer : transfers) {
      if (transfer.count == 0) continue;
      const auto result = call(transfer);
      if (result != ncclSuccess && result != ncclInProgress) return result;
    }
    return ncclSuccess;
  }

  void require_ours(const at::Tensor& tensor) const {
    require(tensor.defined() && tensor.device() == device_, "a tensor lies on another device than the communicator");
    require(tensor.is_contiguous(), "tensors must be contiguous");
  }

  std::shared_ptr<NcclComm> comm_;
  std::shared_ptr<const Ops> ops_;
  at::Device device_;
};

ConnectedCollectives connect(ProcessGroup& group, int device, std::shared_ptr<const Ops> ops) {
  auto comm = std::make_shared<NcclComm>(group, device);
  return {.connection = comm, .collectives = std::make_unique<NcclCollectives>(comm, std::move(ops))};
}

/// NCCL encodes versions as 10000 * major + 100 * minor + patch; before 2.9 as 1000 * major + ...
LibraryVersion nccl_version(int code) {
  const int step = code < 10000 ? 1000 : 10000;
  return {code / step, code % step / 100, code % 100};
}

}  // namespace

CollectivesLibrary collectives_library() {
  int code = 0;
  return {.name = "NCCL",
          .built = nccl_version(NCCL_VERSION_CODE),
          .version = ncclGetVersion(&code) == ncclSuccess ? nccl_version(code) : LibraryVersion{},
          .connect = connect};
}

}  // namespace fsdp::detail
