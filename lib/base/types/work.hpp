#pragma once
// The work of a training step in execution order: matrix products, passes over memory, and transfers. A simulated step
// (lib/planning/memory) records it; step_time.hpp computes its duration. Does not depend on LibTorch.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp {

/// Parts of a step that a run can time separately.
enum class StepPart : std::uint8_t { block, head, exchange, update, input, other };
inline constexpr int kNumStepParts = 6;
/// "block", "head" ...
const char* to_string(StepPart part);
/// The part to which a scope reported to the engine's observers belongs. \param outer  the part of the enclosing scope
StepPart part_of(std::string_view what, std::string_view category, StepPart outer);

/// A transfer of one rank along one mesh axis.
struct TransferWork {
  enum class Kind : std::uint8_t { gather, reduce, all_reduce, to_host };
  Kind kind = Kind::gather;
  double bytes = 0;        ///< size of the gathered or reduced tensor; to_host: bytes copied in either direction
  int ranks = 1;           ///< size of the group
  int nodes = 1;           ///< number of nodes that the group spans
  int groups_at_once = 1;  ///< groups of the same kind on this node, which share its network
};

struct WorkItem {
  enum class Kind : std::uint8_t {
    product,    ///< batch x [m, k] @ [k, n]
    attention,  ///< a fused attention kernel with `flops`
    pass,       ///< reads and writes `bytes`
    start,      ///< start of transfer `id`
    wait        ///< wait for transfer `id`
  };
  Kind kind = Kind::pass;
  StepPart part = StepPart::other;
  bool again = false;    ///< part of a recomputed forward pass (activation checkpointing)
  bool is_half = false;  ///< operands have 16 bits or fewer
  bool on_host = false;  ///< by the host's processors; on a GPU's rank the device waits for them
  double speedup = 1;    ///< speed of a product relative to one with 16-bit operands
  double times = 1;
  double batch = 1, m = 0, n = 0, k = 0;
  double flops = 0;
  double bytes = 0;  ///< read and written
  TransferWork transfer;
  int id = 0;

  double operations() const { return kind == Kind::product ? 2 * batch * m * n * k : flops; }
};

class WorkLog {
 public:
  const std::vector<WorkItem>& work() const { return work_; }
  /// Removes all recorded work.
  void restart();

  /// Same meaning as in EngineObserver.
  void begin(std::string_view what, std::string_view category);
  void end();

  void add(WorkItem work);
  /// \return id of the transfer, for wait()
  int start(const TransferWork& transfer);
  void wait(int id);
  /// Work added until end_repeat() counts `times` times.
  void begin_repeat(double times);
  void end_repeat();

 private:
  struct Scope {
    StepPart part;
    bool again;
  };
  std::vector<WorkItem> work_;
  std::vector<Scope> scopes_;
  std::vector<double> times_{1.0};
  int next_id_ = 0;
};

/// The work of a step. Only the first micro-batches are recorded; the last recorded one represents those that follow.
struct StepWork {
  WorkLog log;
  WorkLog before_last;  ///< the step with one micro-batch fewer; set only when `more` is not 0
  int more = 0;         ///< number of further micro-batches, each like the last one of `log`
};

}  // namespace fsdp
