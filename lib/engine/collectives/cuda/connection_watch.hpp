#pragma once
// Waits for a device and its connections.
#include <memory>
#include <mutex>
#include <vector>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/engine/collectives/cuda/collectives_library.hpp"

namespace fsdp::detail {

/// Makes the host wait for a device. A collective whose peer has died never ends, so the device's connections are
/// polled while waiting. Only one thread at a time may wait for a device.
class ConnectionWatch {
 public:
  void add(const std::shared_ptr<DeviceConnection>& connection);
  /// Waits until `device`, which must be current, is idle. \throws RuntimeFailure naming the collective that failed or
  /// made no progress within its group's timeout
  void wait_for_all(int device);
  /// Waits for the event, but not for collectives that the event does not depend on. \throws RuntimeFailure like
  /// wait_for_all()
  void wait_for(const UniqueEvent& event, int device);

 private:
  std::vector<std::shared_ptr<DeviceConnection>> connections_on(int device);

  std::mutex mutex_;
  std::vector<std::weak_ptr<DeviceConnection>> connections_;
};

}  // namespace fsdp::detail
