// TensorCollectives on NCCL. No function here makes the host wait for the device.
#include <ATen/ops/empty.h>
#include <arpa/inet.h>
#include <c10/core/ScalarType.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <nccl.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/engine/collectives/cuda/collectives_library.hpp"
#include "lib/engine/collectives/nccl/nccl_advice.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/process_group.hpp"

// nccl.h includes CUDA's 8- and 16-bit float headers without using their types. These headers need <nv/target>, which
// only comes with a CUDA toolkit, so their include guards are defined here.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__

namespace fsdp::detail {

/// \throws std::logic_error for a type that NCCL does not support
ncclDataType_t nccl_type(c10::ScalarType type);

/// Describes a collective in messages.
struct CollectiveLabel {
  FlightKind kind = FlightKind::all_gather;
  std::size_t tensors = 0;
  std::int64_t bytes = 0;  ///< sent by this rank

  std::string_view name() const { return kFlightKinds[static_cast<std::size_t>(kind)]; }
};

/// Not thread-safe. The communicator is non-blocking (NCCL calls return at once and are polled for completion), so a
/// missing rank causes a timeout here instead of a hang inside NCCL.
///
/// A missing rank can also block the host inside CUDA: in a launch, because a stream takes only about 1000 entries, in
/// cudaFree, or while a kernel's code is loaded. submit() therefore keeps the host at most kMostAhead collectives ahead
/// of the device, and a thread aborts the communicator where the host does not see a timeout by itself. The abort ends
/// the collective's kernel, the blocked call returns, and the next call here throws.
class NcclComm final : public DeviceConnection {
 public:
  /// Collective over `group`, for the current device. `group` is used to find missing ranks when a collective does not
  /// end, so it must outlive this object. \throws RuntimeFailure
  NcclComm(ProcessGroup& group, int device);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  /// Waits for queued collectives, or aborts them when an exception is in flight or one of them has failed.
  ~NcclComm() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const override { return device_; }

  /// Queues NCCL calls as one group, which starts once `ready` is reached. The host waits until the calls are queued
  /// (the first time until the ranks have connected), not until they have run; if kMostAhead earlier ones are queued,
  /// until the first of them has run.
  /// \param calls  makes the calls on the given communicator and stream, and returns the first error
  /// \return an event that is reached when the calls have run
  std::shared_ptr<UniqueEvent> submit(const CollectiveLabel& label, const UniqueEvent& ready,
                                      const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& calls);

  void check() override;
  bool poll() override;

 private:
  struct Pending {
    std::shared_ptr<UniqueEvent> done;
    CollectiveLabel label;
    std::uint64_t number;
    std::uint64_t record;  ///< see FlightRecorder::begin()
  };
  using Clock = std::chrono::steady_clock;
  struct Limit {
    std::chrono::milliseconds time;
    const char* option;  ///< that sets it
  };
  /// About six blocks or 200 launches.
  static constexpr std::size_t kMostAhead = 16;
  /// How long after the timeout the watchdog acts: the host's own poll() comes first.
  static constexpr std::chrono::seconds kMargin{1};

  void connect(ProcessGroup& group);
  /// Call before NCCL is called. \throws RuntimeFailure if the watchdog has aborted
  std::unique_lock<std::mutex> lock_communicator();
  ncclResult_t state();
  /// Counts how many pending collectives, from the first on, have run. Runs in a thread of its own, since a query of
  /// CUDA may block while another thread is blocked in a launch.
  std::future<std::size_t> count_finished() const;
  /// Runs in the watchdog's thread. \throws std::system_error where no thread can be started for a query
  void watch_host(const std::stop_token& stop);
  [[noreturn]] void fail_without_progress(const Pending& stuck);
  /// Waits while NCCL returns ncclInProgress, as it does while it connects ranks. \param what  for the message:
  /// "connecting"
  void wait_while_in_progress(const std::string& what, const Limit& limit);
  /// Answers the roll call of another rank, and ends this rank's wait. \return true if there is one
  bool is_asked(Clock::duration waited);
  /// \throws what ProcessGroup::check_wait() throws
  void check_group(Clock::duration waited);
  [[noreturn]] void fail_to_connect(const std::string& what, const Limit& limit);
  void drop_finished();
  [[noreturn]] void fail(const std::string& what);
  bool flushed_within(std::chrono::milliseconds limit) noexcept;

  ProcessGroup& group_;
  int rank_;
  int size_;
  int device_;
  std::chrono::milliseconds timeout_;
  Limit connecting_;  ///< of NCCL's start, and of the first collective of each kind
  std::set<FlightKind> connected_;
  std::vector<int> world_ranks_;
  int exceptions_at_birth_;
  bool failed_ = false;
  UniqueStream stream_;
  std::uint64_t num_submitted_ = 0;
  std::uint64_t watched_ = 0;  ///< number of the collective that was first in the queue at the last poll()
  Clock::time_point watched_since_;

  std::mutex mutex_;  ///< guards what follows, which the watchdog reads; not held in calls that the device can block
  ncclComm_t comm_ = nullptr;  ///< null after an abort
  std::deque<Pending> pending_;
  bool looked_ = false;           ///< the host has asked for finished collectives since the watchdog's last turn
  std::optional<Pending> stuck_;  ///< why the watchdog has aborted
  std::condition_variable_any never_;
  std::jthread watchdog_;  ///< runs while there is a communicator
};

namespace {

constexpr std::array<std::pair<c10::ScalarType, ncclDataType_t>, 9> kTypes{{
    {c10::ScalarType::Float, ncclFloat32},
    {c10::ScalarType::BFloat16, ncclBfloat16},
    {c10::ScalarType::Half, ncclFloat16},
    {c10::ScalarType::Double, ncclFloat64},
    {c10::ScalarType::Long, ncclInt64},
    {c10::ScalarType::Int, ncclInt32},
    {c10::ScalarType::Char, ncclInt8},
    {c10::ScalarType::Byte, ncclUint8},
    {c10::ScalarType::Bool, ncclUint8},  // only gathered, never summed
}};

constexpr std::chrono::seconds kAbort{10};  // limit of an abort

bool accepted(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// \return NCCL's explanation of the last error of any communicator; `comm` may be null
std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  std::string text = ncclGetErrorString(result);
  if (detail != nullptr && *detail != '\0') text += fmt::format(" ({})", detail);
  if (result == ncclRemoteError) text += "; look for the message of the rank that failed";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (const auto cure = nccl_cure(text); !cure.empty()) {
    text += fmt::format("; {}", cure);
  } else if (result == ncclInvalidUsage) {
    text += "; each rank needs a GPU of its own";
  }
  return text;
}

void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (!accepted(result)) throw RuntimeFailure(fmt::format("{} failed: {}", call, nccl_text(result, comm)));
}

/// Yields the core, for longer the longer the wait lasts, because NCCL's own threads may need it.
void pause(std::chrono::steady_clock::duration waited) {
  if (waited < std::chrono::microseconds(200)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(waited < std::chrono::milliseconds(20) ? 20 : 200));
  }
}

/// ncclCommAbort itself may hang when peers have died, but the program must still print its message and exit. So the
/// abort runs in a thread of its own, which is abandoned if it takes too long.
void abort_within(std::chrono::milliseconds limit, ncclComm_t comm) noexcept {
  if (comm == nullptr) return;
  try {
    std::packaged_task<void()> task([comm] { static_cast<void>(ncclCommAbort(comm)); });
    auto done = task.get_future();
    std::thread(std::move(task)).detach();
    done.wait_for(limit);
  } catch (...) {
    static_cast<void>(ncclCommAbort(comm));
  }
}

/// \return interfaces that are up, without loopback: "eth0 10.0.0.7, virbr0 192.168.122.1"
std::string addresses_of_host() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "unknown";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  std::vector<std::string> found;
  for (const auto* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr)
      found.push_back(fmt::format("{} {}", one->ifa_name, text.data()));
  }
  return found.empty() ? "none but loopback" : fmt::format("{}", fmt::join(found, ", "));
}

long seconds(std::chrono::milliseconds time) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::seconds>(time).count());
}

/// \return rank 0's NCCL id on every rank. If rank 0 fails, all ranks throw, so that none waits for an id forever.
ncclUniqueId shared_id(ProcessGroup& group) {
  struct Message {
    ncclResult_t result = ncclSuccess;
    ncclUniqueId id{};
  } message;
  if (group.rank() == 0) message.result = ncclGetUniqueId(&message.id);
  group.broadcast(std::as_writable_bytes(std::span(&message, 1)), 0);
  if (message.result != ncclSuccess) {
    throw RuntimeFailure(fmt::format(
        "NCCL does not start on rank {}: {}", group.world_rank(0),
        group.rank() == 0 ? nccl_text(message.result, nullptr) : std::string(ncclGetErrorString(message.result))));
  }
  return message.id;
}

using c10::cuda::CUDAStream;

/// A transfer in progress. The buffers usually need no recordStream. All buffers come from the caching allocator under
/// the compute stream. When a tensor is freed, the allocator may hand its memory to that stream's next kernel at once,
/// although the communicator's stream still uses it. Three orderings make this safe:
///   - the communicator's stream starts after an event recorded after all compute queued when the collective is
///     issued, so older kernels no longer use memory that was recycled for these buffers;
///   - until wait(), this object holds the tensors, so they cannot be freed;
///   - wait() makes the compute stream wait for the transfer, so memory recycled afterwards is used afterwards.
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
  void add_arrival(UpcastSum arrival) { arrivals_.push_back(std::move(arrival)); }
  void started(std::shared_ptr<UniqueEvent> done) { done_ = std::move(done); }

  void wait() override {
    if (done_ == nullptr) return;
    const c10::cuda::CUDAGuard guard(issued_on_.device());
    comm_->check();
    const auto current = c10::cuda::getCurrentCUDAStream(issued_on_.device_index());
    done_->make_wait(current.stream());
    if (current != issued_on_) done_->make_wait(issued_on_.stream());
    done_.reset();
    ops_->upcast_sums(arrivals_);
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
  std::vector<UpcastSum> arrivals_;
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
    CollectiveLabel label{FlightKind::all_gather, tensors.size(), 0};
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
    CollectiveLabel label{FlightKind::reduce_scatter, tensors.size(), 0};
    for (const auto& [full, shard, accumulate] : tensors) {
      require_ours(full);
      require_ours(shard);
      const bool arrives_as_is = !accumulate && shard.scalar_type() == full.scalar_type();
      require(arrives_as_is || shard.scalar_type() == at::kFloat, "gradient shards are float32, or as they travel");
      require(full.is_floating_point(), "only floating-point gradients can be summed");
      require(full.numel() == shard.numel() * size(), "the full gradient must be size() shards");
      at::Tensor target = shard;
      if (!arrives_as_is) {
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
    CollectiveLabel label{FlightKind::all_to_all, tensors.size(), 0};
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
    CollectiveLabel label{FlightKind::all_reduce, tensors.size(), 0};
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

ncclDataType_t nccl_type(c10::ScalarType type) {
  for (const auto& [torch_type, nccl] : kTypes) {
    if (torch_type == type) return nccl;
  }
  throw std::logic_error(std::string("NCCL cannot carry ") + c10::toString(type));
}

NcclComm::NcclComm(ProcessGroup& group, int device)
    : group_(group),
      rank_(group.rank()),
      size_(group.size()),
      device_(device),
      timeout_(group.timeout()),
      connecting_{group.init_timeout(), "--init-timeout"},
      exceptions_at_birth_(std::uncaught_exceptions()) {
  for (int member = 0; member < size_; ++member) world_ranks_.push_back(group.world_rank(member));
  try {
    connect(group);
    const auto watch = [this](const std::stop_token& stop) noexcept {
      try {
        watch_host(stop);
      } catch (const std::system_error&) {
        // Without threads the host's own polls remain.
      }
    };
    watchdog_ = start_thread("watches NCCL", [&] { return std::jthread(watch); });
  } catch (...) {
    abort_within(kAbort, comm_);  // the destructor does not run when the constructor throws
    throw;
  }
}

NcclComm::~NcclComm() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_birth_;
  watchdog_.request_stop();
  watchdog_.join();
  if (!unwinding && !failed_ && comm_ != nullptr &&
      flushed_within(std::min(timeout_, std::chrono::milliseconds(60000)))) {
    static_cast<void>(ncclCommDestroy(comm_));
    return;
  }
  // The peers may have died, and an orderly end would wait for them.
  abort_within(kAbort, comm_);
}

void NcclComm::connect(ProcessGroup& group) {
  ncclUniqueId id = shared_id(group);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check_nccl(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig", nullptr);
  wait_while_in_progress("connecting the ranks", connecting_);
}

std::shared_ptr<UniqueEvent> NcclComm::submit(const CollectiveLabel& label, const UniqueEvent& ready,
                                              const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& calls) {
  drop_finished();
  auto* const recorder = group_.recorder();
  const auto record = recorder == nullptr
                          ? std::uint64_t{0}
                          : recorder->begin(label.kind, group_.recorded_as(), static_cast<std::uint64_t>(label.bytes));
  for (const auto start = Clock::now(); pending_.size() >= kMostAhead && !poll();) pause(Clock::now() - start);
  ready.make_wait(stream_.get());
  check();
  {
    const auto lock = lock_communicator();
    check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
    const auto queued = calls(comm_, stream_.get());
    // Close the group even after a failed call; otherwise the open group would absorb all later calls.
    const auto closed = ncclGroupEnd();
    if (!accepted(queued) || !accepted(closed)) {
      fail(fmt::format("the {} was refused: {}", label.name(), nccl_text(accepted(queued) ? closed : queued, comm_)));
    }
  }
  // An event recorded on the stream follows the collective's kernels only once NCCL has queued them.
  const Limit usual{timeout_, "--collective-timeout"};
  const bool is_first = !connected_.contains(label.kind);
  wait_while_in_progress(is_first ? fmt::format("connecting the ranks for the first {}", label.name())
                                  : fmt::format("queueing the {}", label.name()),
                         is_first ? connecting_ : usual);
  connected_.insert(label.kind);
  auto done = std::make_shared<UniqueEvent>();
  done->record(stream_.get());
  if (recorder != nullptr) recorder->wait(record);  // the device waits from now on, whenever the host does
  const std::scoped_lock lock(mutex_);
  pending_.push_back({done, label, ++num_submitted_, record});
  return done;
}

void NcclComm::wait_while_in_progress(const std::string& what, const Limit& limit) {
  const auto start = Clock::now();
  for (;;) {
    const auto now = state();
    if (now == ncclSuccess) return;
    if (now != ncclInProgress) fail(fmt::format("{} failed: {}", what, nccl_text(now, comm_)));
    const auto waited = Clock::now() - start;
    check_group(waited);
    if (waited > limit.time || is_asked(waited)) fail_to_connect(what, limit);
    pause(waited);
  }
}

bool NcclComm::is_asked(Clock::duration waited) {
  return waited > std::chrono::milliseconds(5) && group_.liveness_probed();
}

void NcclComm::check_group(Clock::duration waited) {
  if (waited < std::chrono::milliseconds(100)) return;
  try {
    group_.check_wait();
  } catch (...) {
    failed_ = true;
    if (auto* recorder = group_.recorder()) recorder->freeze();
    throw;
  }
}

void NcclComm::fail_to_connect(const std::string& what, const Limit& limit) {
  const auto missing = group_.missing_ranks();
  if (!missing.empty())
    fail(fmt::format("{} did not end within {} s ({}); did not answer: rank {}", what, seconds(limit.time),
                     limit.option, fmt::join(missing, ", ")));
  fail(
      fmt::format("{} did not end within {} s ({}), and every rank waits in it. Between nodes NCCL may have chosen an "
                  "interface that does not reach the others (NCCL_SOCKET_IFNAME; here: {}); inside a node "
                  "NCCL_P2P_DISABLE=1 goes without direct access. NCCL_DEBUG=INFO tells what it tries",
                  what, seconds(limit.time), limit.option, addresses_of_host()));
}

std::unique_lock<std::mutex> NcclComm::lock_communicator() {
  std::unique_lock lock(mutex_);
  if (!stuck_) return lock;
  lock.unlock();  // the watchdog has ended and changes nothing
  fail_without_progress(*stuck_);
}

ncclResult_t NcclComm::state() {
  const auto lock = lock_communicator();
  ncclResult_t now = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm_, &now), "ncclCommGetAsyncError", comm_);
  return now;
}

void NcclComm::check() {
  const auto now = state();
  if (!accepted(now)) fail("a collective failed: " + nccl_text(now, comm_));
}

void NcclComm::drop_finished() {
  const auto running = std::find_if(pending_.begin(), pending_.end(), [](const auto& p) { return !p.done->reached(); });
  if (auto* recorder = group_.recorder())
    std::for_each(pending_.begin(), running, [&](const auto& p) { recorder->end(p.record); });
  const std::scoped_lock lock(mutex_);
  looked_ = true;
  pending_.erase(pending_.begin(), running);
}

bool NcclComm::poll() {
  drop_finished();
  if (pending_.empty()) return true;
  check();
  const auto& first = pending_.front();
  if (watched_ != first.number) {
    watched_ = first.number;
    watched_since_ = Clock::now();
  }
  const auto waited = Clock::now() - watched_since_;
  check_group(waited);
  // A rank that has waited longer is taking a roll call: answer it, so that it does not count this rank as missing.
  if (waited > timeout_ || is_asked(waited)) fail_without_progress(first);
  return false;
}

std::future<std::size_t> NcclComm::count_finished() const {
  std::packaged_task<std::size_t()> task([pending = pending_, device = device_] {
    std::size_t count = 0;
    if (cudaSetDevice(device) != cudaSuccess) return count;
    while (count < pending.size() && cudaEventQuery(pending[count].done->get()) == cudaSuccess) ++count;
    return count;
  });
  auto count = task.get_future();
  start_thread("counts what NCCL has finished", [&] { std::thread(std::move(task)).detach(); });
  return count;
}

void NcclComm::watch_host(const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kShortest{1}, kLongest{250};
  // Turns are counted rather than time: a job that was suspended has waited for one turn.
  const auto turn = std::clamp(timeout_ / 8, kShortest, kLongest);
  const auto most_turns = timeout_ / turn + kMargin / turn;
  std::int64_t turns = 0;
  std::uint64_t first = 0, asked = 0;  // numbers of the first collective that may be running, and of a query's first
  std::future<std::size_t> reached;
  std::unique_lock lock(mutex_);
  while (!never_.wait_for(lock, stop, turn, [] { return false; }) && !stop.stop_requested()) {
    if (pending_.empty()) continue;
    ++turns;
    const auto advance_to = [&](std::uint64_t number) {
      if (number <= first) return;
      first = number;
      turns = 0;
    };
    const auto number = pending_.front().number;
    advance_to(number);
    const bool answered = reached.valid() && reached.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (answered) advance_to(asked + reached.get());
    if (first > pending_.back().number) continue;
    if (!std::exchange(looked_, false) && !reached.valid()) {
      asked = number;
      reached = count_finished();
    }
    if (turns < most_turns) continue;
    stuck_ = pending_[first - number];
    auto* const comm = std::exchange(comm_, nullptr);
    lock.unlock();
    return abort_within(kAbort, comm);
  }
}

void NcclComm::fail_without_progress(const Pending& stuck) {
  const auto missing = group_.missing_ranks();
  fail(fmt::format("{} number {} ({} tensors, {} bytes) made no progress within {} s (--collective-timeout){}",
                   stuck.label.name(), stuck.number, stuck.label.tensors, stuck.label.bytes, seconds(timeout_),
                   missing.empty() ? "" : fmt::format("; did not answer: rank {}", fmt::join(missing, ", "))));
}

void NcclComm::fail(const std::string& what) {
  failed_ = true;
  if (auto* recorder = group_.recorder()) recorder->freeze();
  throw StuckFailure(
      fmt::format("NCCL on device {}, among world ranks {}: {}", device_, fmt::join(world_ranks_, ","), what));
}

bool NcclComm::flushed_within(std::chrono::milliseconds limit) noexcept {
  if (!accepted(ncclCommFinalize(comm_))) return false;
  const auto start = Clock::now();
  for (;;) {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
    if (state == ncclSuccess) return true;
    const auto waited = Clock::now() - start;
    if (state != ncclInProgress || waited > limit) return false;
    pause(waited);
  }
}

CollectivesLibrary collectives_library() {
  int code = 0;
  return {.name = "NCCL",
          .built = nccl_version(NCCL_VERSION_CODE),
          .version = ncclGetVersion(&code) == ncclSuccess ? nccl_version(code) : LibraryVersion{},
          .connect = connect};
}

}  // namespace fsdp::detail
