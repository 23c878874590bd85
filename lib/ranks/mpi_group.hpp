#pragma once
// MPI ranks as a ProcessGroup. Only mpi_*.cpp include mpi.h.
#include <mpi.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// Owns a communicator. The destructor ignores errors of MPI_Comm_free.
class UniqueComm {
 public:
  UniqueComm() = default;
  /// Takes ownership; MPI_COMM_WORLD itself must be duplicated first.
  explicit UniqueComm(MPI_Comm comm) : comm_(comm) {}
  UniqueComm(UniqueComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  UniqueComm& operator=(UniqueComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  UniqueComm(const UniqueComm&) = delete;
  UniqueComm& operator=(const UniqueComm&) = delete;
  ~UniqueComm();
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// \throws RuntimeFailure with MPI's own text
void check_mpi(int code, const char* call);

class MpiGroup final : public ProcessGroup {
 public:
  /// \param alarm  the whole job's communicator for missing_ranks(), from the group that this one is split from; null
  /// when
  ///               this group is the whole job
  MpiGroup(UniqueComm comm, std::chrono::milliseconds timeout, std::shared_ptr<const UniqueComm> alarm = nullptr);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override;
  void all_reduce(std::span<double> values, Reduce op) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  std::vector<std::string> gather(std::string_view text, int root) override;
  std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) override;
  std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) override;
  std::unique_ptr<ProcessGroup> split(int color) override;
  std::unique_ptr<ProcessGroup> split_by_node() override;
  std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) override;
  std::chrono::milliseconds timeout() const override { return timeout_; }
  int world_rank(int member) const override { return world_ranks_[static_cast<std::size_t>(member)]; }

  /// Ranks that wait in any group respond. Returns the members of this group that do not respond or, if all members do,
  /// the other ranks of the job that do not, because they block a member.
  std::vector<int> missing_ranks() override;
  bool liveness_probed() override;

  /// A barrier with a timeout. \return false when a rank did not arrive in time; the group is unusable afterwards
  bool barrier_within(std::chrono::milliseconds patience);
  /// Waits for all requests. \throws RuntimeFailure naming the ranks that did not arrive within the timeout
  void wait(std::span<MPI_Request> requests, const char* what);

 private:
  UniqueComm comm_;
  std::shared_ptr<const UniqueComm> alarm_;  ///< own communicator, so that its messages cannot match a collective's
  std::chrono::milliseconds timeout_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> world_ranks_;
};

/// Memory shared by all ranks of `group`, or null on every rank if they cannot share it. See memfd_peer_memory.cpp.
std::unique_ptr<PeerMemory> make_memfd_peer_memory(ProcessGroup& group, std::size_t size_bytes,
                                                   std::size_t num_counters);

}  // namespace fsdp::detail
