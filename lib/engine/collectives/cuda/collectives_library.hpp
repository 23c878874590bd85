#pragma once
// Interface between the CUDA back end and a library of collectives between GPUs (NCCL).
//
// A library is one folder beside this one, which defines collectives_library(). The CMake variable
// FSDP_DEVICE_COLLECTIVES names the folder that is built into libfsdp_cuda.so.
#include <memory>

#include "lib/compute/device/gpus.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"

namespace fsdp::detail {

/// The connection of a device to the devices of a group's other ranks. A collective whose peer has died never ends, so
/// the back end polls connections while the host waits for the device. Not thread-safe.
class DeviceConnection {
 public:
  virtual ~DeviceConnection() = default;
  virtual int device() const = 0;
  /// \throws RuntimeFailure when a queued collective has failed (a peer died, the network broke)
  virtual void check() = 0;
  /// \return true when all queued collectives have run. Otherwise calls check() and measures the time since the last
  /// progress. \throws RuntimeFailure after the group's timeout, naming the collective that does not end
  virtual bool poll() = 0;
};

/// Collectives on CUDA tensors, and the connection to poll. The connection lives at least as long as its collectives.
struct ConnectedCollectives {
  std::shared_ptr<DeviceConnection> connection;
  std::unique_ptr<TensorCollectives> collectives;
};

struct CollectivesLibrary {
  const char* name;        ///< for users: "NCCL"
  LibraryVersion built;    ///< version whose headers were compiled against
  LibraryVersion version;  ///< version in use; zeros: unknown
  /// Connects the ranks of `group`, which must outlive the result, on the current device. Collective.
  /// \throws RuntimeFailure naming the library's reason, or the timeout
  ConnectedCollectives (*connect)(ProcessGroup& group, int device, std::shared_ptr<const Ops> ops);
};

CollectivesLibrary collectives_library();

}  // namespace fsdp::detail
