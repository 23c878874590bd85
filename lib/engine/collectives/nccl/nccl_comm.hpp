#pragma once
// One NCCL communicator with its stream, and the watch over what was queued on it.
#include <c10/core/ScalarType.h>

// nccl.h includes CUDA's 8- and 16-bit float headers and uses none of their types. They need <nv/target>, which comes
// with a toolkit only, so they are left out.
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
#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// \throws std::logic_error for a type NCCL cannot carry
ncclDataType_t nccl_type(c10::ScalarType type);

/// Description of a collective for messages.
struct CollectiveLabel {
  const char* kind = "";  ///< "all-gather"
  std::size_t tensors = 0;
  std::int64_t bytes = 0;  ///< sent by this rank
};

/// Not thread-safe. Communicators are non-blocking (NCCL returns at once and is asked whether it is done), so that a
/// rank that never comes is a timeout here instead of a hang inside NCCL.
class NcclComm {
 public:
  /// Collective over `group`, on the current device; the group is asked who is missing when a collective does not end.
  /// \throws RuntimeFailure
  NcclComm(ProcessGroup& group, int device);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  /// Lets queued collectives finish, or aborts them when an exception is in flight or one of them has failed.
  ~NcclComm();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }

  /// Queues NCCL calls as one group. They start once `ready` is reached; the event returned is reached when they are
  /// done. The host waits until they are queued (the first time: until the ranks have connected), not until they ran.
  /// \param calls  makes the calls with this communicator and stream, and returns the first error
  std::shared_ptr<UniqueEvent> submit(const CollectiveLabel& label, const UniqueEvent& ready,
                                      const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& calls);

  /// \throws RuntimeFailure when a collective has failed since (a peer died, the network broke)
  void check();
  /// True when everything submitted has run; otherwise check()s, and counts the time since something last finished.
  /// \throws RuntimeFailure past the group's timeout, naming the collective that does not finish
  bool poll();

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
  std::uint64_t watched_ = 0;  ///< number of the collective that poll() found first in line
  Clock::time_point watched_since_;
};

}  // namespace fsdp::detail
