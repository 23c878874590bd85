#pragma once
// An NCCL communicator with its stream, and the supervision of the collectives queued on it.
#include <c10/core/ScalarType.h>

// nccl.h includes CUDA's 8- and 16-bit float headers without using their types. These headers need <nv/target>, which
// only comes with a CUDA toolkit, so their include guards are defined here.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/engine/collectives/cuda/collectives_library.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// \throws std::logic_error for a type that NCCL does not support
ncclDataType_t nccl_type(c10::ScalarType type);

/// Describes a collective in messages.
struct CollectiveLabel {
  const char* kind = "";  ///< "all-gather"
  std::size_t tensors = 0;
  std::int64_t bytes = 0;  ///< sent by this rank
};

/// Not thread-safe. The communicator is non-blocking (NCCL calls return at once and are polled for completion), so a
/// missing rank causes a timeout here instead of a hang inside NCCL.
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
  /// (the first time until the ranks have connected), not until they have run.
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
  };
  using Clock = std::chrono::steady_clock;

  void connect(ProcessGroup& group);
  /// Waits while NCCL returns ncclInProgress. \param what  for the message: "connecting"
  void wait_while_in_progress(const std::string& what);
  void drop_finished();
  [[noreturn]] void fail(const std::string& what);
  bool flushed_within(std::chrono::milliseconds limit) noexcept;
  void abort_within(std::chrono::milliseconds limit) noexcept;

  ProcessGroup& group_;
  int rank_;
  int size_;
  int device_;
  std::chrono::milliseconds timeout_;
  std::vector<int> world_ranks_;
  int exceptions_at_birth_;
  bool failed_ = false;
  UniqueStream stream_;
  ncclComm_t comm_ = nullptr;
  std::deque<Pending> pending_;
  std::uint64_t num_submitted_ = 0;
  std::uint64_t watched_ = 0;  ///< number of the collective that was first in the queue at the last poll()
  Clock::time_point watched_since_;
};

}  // namespace fsdp::detail
