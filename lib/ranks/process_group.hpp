#pragma once
// A group of ranks and what they do on the host: agree, exchange small values, share memory, move blocks.
//
// Three kinds of group implement this: MPI ranks, threads of one process (tests of the engine), and a lone rank.
// Collective calls must be made by every rank of the group in the same order.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

enum class Reduce { sum, max, min };

/// A counter in memory that every rank of a group sees, alone on its cache line.
struct alignas(64) SharedCounter {
  std::atomic<std::uint64_t> value{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "counters are shared between processes");

/// Zeroed memory that all ranks of a group on one node address, and counters to order their accesses.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  virtual std::byte* data() = 0;
  virtual std::size_t size_bytes() const = 0;
  virtual SharedCounter& counter(std::size_t index) = 0;
  /// Says that this rank will not read these bytes for a while: they stay where they are for the others, but leave this
  /// process's page table, so that its resident set is what it holds. (Schedulers that add up resident sets would
  /// otherwise count shared pages once per rank and kill jobs that fit.) The next read brings them back.
  virtual void forget(std::size_t offset_bytes, std::size_t size_bytes) = 0;
};

/// A transfer under way; wait() must be called before its buffers are touched or destroyed.
class Work {
 public:
  virtual ~Work() = default;
  /// \throws RuntimeFailure when a rank fails to arrive within the group's timeout
  virtual void wait() = 0;
};

/// A transfer that was done when it was started.
class DoneWork final : public Work {
 public:
  void wait() override {}
};

/// One block of an all-gather: everybody's `in` (equal sizes), one after the other by rank, becomes `out`.
struct GatherBlock {
  std::span<const std::byte> in;
  std::span<std::byte> out;
};

/// One block of an all-to-all: slice r of `in` goes to rank r, `out` collects the slices meant for this rank.
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
  /// Element-wise over the ranks; every rank gets the same bits.
  virtual void all_reduce(std::span<double> values, Reduce op) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  /// \return every rank's text by rank on `root`, nothing elsewhere
  virtual std::vector<std::string> gather(std::string_view text, int root) = 0;

  virtual std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) = 0;
  virtual std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) = 0;

  /// Ranks with the same color form a group, ordered by rank here.
  virtual std::unique_ptr<ProcessGroup> split(int color) = 0;
  /// The ranks that can share memory with this one.
  virtual std::unique_ptr<ProcessGroup> split_by_node() = 0;
  /// Collective. \return null on every rank when the ranks cannot all share memory.
  virtual std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) = 0;

  /// How long a wait may last before the job is declared stuck.
  virtual std::chrono::milliseconds timeout() const = 0;
  /// Asks who is there, for seconds, once a wait has lasted too long. \return world ranks that do not answer; none
  /// where that cannot be told
  virtual std::vector<int> missing_ranks() { return {}; }
  /// Another rank asks that: its wait began earlier than this one's.
  virtual bool roll_called() { return false; }
  /// World rank of a member, for messages.
  virtual int world_rank(int member) const = 0;

  // Built from the above.
  double all_reduce(double value, Reduce op);
  std::string broadcast_text(std::string_view text, int root);
};

/// Waits until `counter` reaches `value`: spins briefly, then yields, then sleeps.
/// \throws RuntimeFailure("... rank N did not arrive ...") past the group's timeout
void wait_for_counter(const ProcessGroup& group, SharedCounter& counter, std::uint64_t value, int member,
                      std::string_view what);

/// A group of one.
std::unique_ptr<ProcessGroup> make_single_group();

}  // namespace fsdp
