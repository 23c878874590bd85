#include "lib/engine/collectives/nccl/comm_watch.hpp"

#include <chrono>
#include <thread>

namespace fsdp::detail {
namespace {

/// Until all that was submitted has run, or `enough` says so.
template <typename Enough>
void watch(const std::vector<std::shared_ptr<NcclComm>>& comms, const Enough& enough) {
  for (bool idle = false; !idle && !enough();) {
    idle = true;
    for (const auto& comm : comms) idle = comm->poll() && idle;
    if (!idle) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

void CommWatch::add(const std::shared_ptr<NcclComm>& comm) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(comms_, [](const auto& old) { return old.expired(); });
  comms_.push_back(comm);
}

void CommWatch::wait_for_all(int device) {
  const auto comms = comms_on(device);
  // cudaDeviceSynchronize would wait for ever on a collective whose peer is gone.
  watch(comms, [] { return false; });
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const auto& comm : comms) comm->check();
}

void CommWatch::wait_for(const UniqueEvent& event, int device) {
  const auto comms = comms_on(device);
  watch(comms, [&] { return event.reached(); });
  check_cuda(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
  for (const auto& comm : comms) comm->check();
}

std::vector<std::shared_ptr<NcclComm>> CommWatch::comms_on(int device) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<NcclComm>> comms;
  for (const auto& weak : comms_) {
    if (auto comm = weak.lock(); comm != nullptr && comm->device() == device) comms.push_back(std::move(comm));
  }
  return comms;
}

}  // namespace fsdp::detail
