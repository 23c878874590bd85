#pragma once
// How the host waits for a device: behind what it waits for may be a collective whose peer is gone, which never ends,
// so the device's communicators are watched meanwhile. One thread at a time waits for a device.
#include <memory>
#include <mutex>
#include <vector>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/engine/collectives/nccl/nccl_comm.hpp"

namespace fsdp::detail {

class CommWatch {
 public:
  void add(const std::shared_ptr<NcclComm>& comm);
  /// Until `device`, the current one, has done all that it was asked for. \throws RuntimeFailure, as below, naming the
  /// collective that failed or made no progress within its group's timeout
  void wait_for_all(int device);
  /// Until the event is reached; collectives that it does not lie behind go on.
  void wait_for(const UniqueEvent& event, int device);

 private:
  std::vector<std::shared_ptr<NcclComm>> comms_on(int device);

  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclComm>> comms_;
};

}  // namespace fsdp::detail
