#pragma once
// What a training step asks of a device, in the order in which it asks: products, passes over memory, transfers.
// Written down by a step that does not run (lib/planning/memory); how long it takes is step_time.hpp's matter. Free of
// LibTorch.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp {

/// Parts of a step that a run can time by itself.
enum class StepPart : std::uint8_t { block, head, exchange, update, input, other };
inline constexpr int kNumStepParts = 6;
/// "block", "head" ...
const char* to_string(StepPart part);
/// Of what the engine's observers are told. \param outer  the part that it is inside of
StepPart part_of(std::string_view what, std::string_view category, StepPart outer);

/// Along one mesh axis, by one rank.
struct TransferWork {
  enum class Kind : std::uint8_t { gather, reduce, all_reduce, to_host };
  Kind kind = Kind::gather;
  double bytes = 0;        ///< of the whole: what a gather makes, what is summed; to_host: what is copied, either way
  int ranks = 1;           ///< of the group
  int nodes = 1;           ///< over which they lie
  int groups_at_once = 1;  ///< groups like it that ranks of this node are in: they share its network
};

struct WorkItem {
  enum class Kind : std::uint8_t {
    product,    ///< batch x [m, k] @ [k, n]
    attention,  ///< a kernel's: `flops`
    pass,       ///< reads and writes `bytes`
    start,      ///< of transfer `id`
    wait        ///< for transfer `id`
  };
  Kind kind = Kind::pass;
  StepPart part = StepPart::other;
  bool again = false;    ///< of a forward pass that is computed once more
  bool is_half = false;  ///< factors of 16 bits, or fewer
  double speedup = 1;    ///< of a product over one of 16 bits
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
  /// Forgets what was written down.
  void restart();

  /// As EngineObserver's.
  void begin(std::string_view what, std::string_view category);
  void end();

  void add(WorkItem work);
  /// \return for wait()
  int start(const TransferWork& transfer);
  void wait(int id);
  /// What is added until end_repeat() stands for `times` of it.
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

/// A step's. Of many micro-batches few are written down: the last of them stands for those that follow.
struct StepWork {
  WorkLog log;
  WorkLog before_last;  ///< the step with one micro-batch less; where `more` is not 0
  int more = 0;         ///< micro-batches, each as the last of `log`
};

}  // namespace fsdp
