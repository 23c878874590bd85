#include "lib/engine/collectives/cuda/connection_watch.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace fsdp::detail {
namespace {

/// Polls until all submitted collectives have run or enough() returns true.
template <typename Enough>
void watch(const std::vector<std::shared_ptr<DeviceConnection>>& connections, const Enough& enough) {
  for (bool idle = false; !idle && !enough();) {
    idle = true;
    for (const auto& connection : connections) idle = connection->poll() && idle;
    if (!idle) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

void ConnectionWatch::add(const std::shared_ptr<DeviceConnection>& connection) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(connections_, [](const auto& old) { return old.expired(); });
  connections_.push_back(connection);
}

void ConnectionWatch::wait_for_all(int device) {
  const auto connections = connections_on(device);
  // cudaDeviceSynchronize would wait forever for a collective whose peer has died.
  watch(connections, [] { return false; });
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const auto& connection : connections) connection->check();
}

void ConnectionWatch::wait_for(const UniqueEvent& event, int device) {
  const auto connections = connections_on(device);
  watch(connections, [&] { return event.reached(); });
  check_cuda(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
  for (const auto& connection : connections) connection->check();
}

std::vector<std::shared_ptr<DeviceConnection>> ConnectionWatch::connections_on(int device) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<DeviceConnection>> connections;
  for (const auto& weak : connections_) {
    if (auto connection = weak.lock(); connection != nullptr && connection->device() == device)
      connections.push_back(std::move(connection));
  }
  return connections;
}

}  // namespace fsdp::detail
