#pragma once
// A group of ranks and its collectives on the host: reductions, small messages, shared memory, and block transfers.
//
// Implementations: MPI ranks, threads of one process (for tests of the engine), a single rank, and a simulated job
// (fake_group.hpp). Every rank of the group must make the collective calls in the same order.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/error.hpp"

namespace fsdp {

class FlightRecorder;

/// Other ranks did not arrive.
class StuckFailure : public RuntimeFailure {
 public:
  using RuntimeFailure::RuntimeFailure;
};

enum class Reduce { sum, max, min };

/// A counter in memory shared by all ranks of a group, for which they wait with wait_for_counter(). Has its own cache
/// line.
struct alignas(64) SharedCounter {
  std::atomic<std::uint64_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};  ///< ranks that the kernel must wake

  /// Sets the value, after everything that this rank wrote before, and wakes ranks that sleep for it.
  void raise(std::uint64_t to);
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "counters are shared between processes");

/// Zero-initialised memory shared by all ranks of a group on one node, and counters that synchronise access to it.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  virtual std::byte* data() = 0;
  virtual std::size_t size_bytes() const = 0;
  virtual SharedCounter& counter(std::size_t index) = 0;
  /// Removes these bytes from this process's page table; their content and the other ranks are unaffected, and the next
  /// access maps them again. Call when this rank will not read them for a while. Schedulers that add up resident set
  /// sizes would otherwise count shared pages once per rank and kill jobs that fit.
  virtual void forget(std::size_t offset_bytes, std::size_t size_bytes) = 0;
};

/// A transfer in progress. wait() must be called before its buffers are accessed or destroyed.
class Work {
 public:
  virtual ~Work() = default;
  /// \throws RuntimeFailure when a rank fails to arrive within the group's timeout
  virtual void wait() = 0;
};

/// A transfer that is already complete.
class DoneWork final : public Work {
 public:
  void wait() override {}
};

/// One block of an all-gather: `out` becomes the concatenation, by rank, of every rank's `in`; all have equal size.
struct GatherBlock {
  std::span<const std::byte> in;
  std::span<std::byte> out;
};

/// One block of an all-to-all: slice r of `in` goes to rank r; slice r of `out` comes from rank r.
struct ExchangeBlock {
  std::span<const std::byte> in;
  std::span<std::byte> out;
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void barrier() = 0;
  /// Reduces element-wise over the ranks. Every rank gets bitwise identical results.
  virtual void all_reduce(std::span<double> values, Reduce op) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  /// \return on `root`, the texts of all ranks by rank; an empty vector on other ranks
  virtual std::vector<std::string> gather(std::string_view text, int root) = 0;

  virtual std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) = 0;
  virtual std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) = 0;

  /// Splits the group: ranks of equal color form a group and keep their order.
  virtual std::unique_ptr<ProcessGroup> split(int color) = 0;
  /// The group of ranks that can share memory with this one.
  virtual std::unique_ptr<ProcessGroup> split_by_node() = 0;
  /// Collective. \return null on every rank when the ranks cannot all share memory.
  virtual std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) = 0;

  /// Longest wait before the job is considered stuck.
  virtual std::chrono::milliseconds timeout() const = 0;
  /// Finds out, after a wait timed out, which ranks do not respond; takes seconds.
  /// \return their world ranks; empty when they cannot be determined
  virtual std::vector<int> missing_ranks() { return {}; }
  /// True when another rank, whose wait began earlier, is running missing_ranks().
  virtual bool liveness_probed() { return false; }
  /// Longest wait while a library of collectives connects the ranks.
  virtual std::chrono::milliseconds init_timeout() const { return timeout(); }
  /// Call now and then in a wait for other ranks. It takes microseconds. Both errors come after a second or more, in
  /// which what is waited for may still come.
  /// \throws RuntimeFailure naming ranks of the job whose processes have ended, as far as this host can tell; an Error
  ///         of stopped_early as end_waits() says
  virtual void check_wait() const {}
  /// From now on waits of this group, and of those split from the same job, end some seconds after `wanted` says true
  /// for the first time: for parts of a job that leave nothing to save. Empty: they do not.
  virtual void end_waits([[maybe_unused]] std::function<bool()> wanted) {}  // NOLINT: MpiGroup keeps it
  /// World rank of a member of the group, for messages.
  virtual int world_rank(int member) const = 0;
  /// Where waits of this rank are recorded, see recorded_group.hpp; null: nowhere.
  virtual FlightRecorder* recorder() const { return nullptr; }
  /// The group's place in the record.
  virtual std::uint8_t recorded_as() const { return 0; }

  // Implemented with the virtual functions above.
  double all_reduce(double value, Reduce op);
  std::string broadcast_text(std::string_view text, int root);
};

/// Waits until `counter` reaches `value`: spins briefly, then yields, then sleeps until the counter is raised.
/// \throws RuntimeFailure("... rank N did not arrive ...") past the group's timeout; what check_wait() throws
void wait_for_counter(const ProcessGroup& group, SharedCounter& counter, std::uint64_t value, int member,
                      std::string_view what);

/// A group that consists of this rank only.
std::unique_ptr<ProcessGroup> make_single_group();

}  // namespace fsdp
