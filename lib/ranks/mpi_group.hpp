#pragma once
// MPI ranks as a ProcessGroup. Only mpi_*.cpp include mpi.h.
#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/process/process_identity.hpp"
#include "lib/base/types/index.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/ranks/rank_environment.hpp"

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

/// MPI's own words for a code that a call returned.
std::string mpi_error_text(int code);
/// \throws RuntimeFailure with these words
void check_mpi(int code, const char* call);

/// The common state of a job's groups, by which they find out why another rank does not arrive.
struct MpiJob {
  struct Peer {
    int world_rank = 0;
    ProcessIdentity process;
  };
  using Clock = std::chrono::steady_clock;

  explicit MpiJob(const MpiOptions& wanted) : limits(wanted) {}

  MpiOptions limits;
  UniqueComm alarm;                   ///< for missing_ranks(): its messages cannot match a collective's
  std::vector<Peer> peers;            ///< the other ranks whose processes this host shows
  std::function<bool()> stop_wanted;  ///< see ProcessGroup::end_waits(); may be empty
  Clock::time_point looked{};         ///< when they were last looked at
  Clock::time_point gone_since{};     ///< when a peer was first seen to have ended
  Clock::time_point stopped_since{};  ///< when stop_wanted() first said true

  /// \throws as ProcessGroup::check_wait()
  void check_wait();
};

class MpiGroup final : public ProcessGroup {
 public:
  /// The whole job. Collective
  MpiGroup(UniqueComm comm, const MpiOptions& limits);
  /// A group that is split from `job`'s.
  MpiGroup(UniqueComm comm, std::shared_ptr<MpiJob> job);

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
  std::chrono::milliseconds timeout() const override { return job_->limits.collective_timeout; }
  std::chrono::milliseconds init_timeout() const override { return job_->limits.init_timeout; }
  void check_wait() const override { job_->check_wait(); }
  void end_waits(std::function<bool()> wanted) override;
  int world_rank(int member) const override { return element(world_ranks_, member); }

  /// Ranks that wait in any group respond. Returns the members of this group that do not respond or, if all members do,
  /// the other ranks of the job that do not, because they block a member.
  std::vector<int> missing_ranks() override;
  bool liveness_probed() override;

  /// A barrier with a timeout. \return false when a rank did not arrive in time; the group is unusable afterwards
  bool barrier_within(std::chrono::milliseconds patience);
  /// Waits for all requests. \throws RuntimeFailure naming the ranks that did not arrive within the timeout, or as
  /// check_wait()
  void wait(std::span<MPI_Request> requests, const char* what);
  /// From now on check_wait() looks for the ends of the ranks' processes. \pre the group is the whole job. Collective
  void know_peers();

 private:
  UniqueComm comm_;
  std::shared_ptr<MpiJob> job_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> world_ranks_;
};

/// Memory shared by all ranks of `group`, or null on every rank if they cannot share it. See memfd_peer_memory.cpp.
std::unique_ptr<PeerMemory> make_memfd_peer_memory(ProcessGroup& group, std::size_t size_bytes,
                                                   std::size_t num_counters);

}  // namespace fsdp::detail
