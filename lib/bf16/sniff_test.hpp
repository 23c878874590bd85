#pragma once
// Tests nodes within a training job, before its first step and every so many steps: multiplies and transfers known
// numbers in the job's own shapes and types, by its own products and collectives, and compares every bit. A node that
// gives wrong numbers now and then passes a single check (NVIDIA/nccl-tests, issue 172): each one is repeated.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/run/step_observer.hpp"
#include "lib/training/watch/replica_check.hpp"
#include "lib/training/watch/wrong_ranks.hpp"

namespace fsdp::detail {

/// x [rows, in] times the transpose of a weight [out, in].
struct ProductShape {
  std::int64_t rows, in, out;
  auto operator<=>(const ProductShape&) const = default;
};

/// \return numbers of the largest block
std::int64_t largest_block(const Decoder& decoder);
/// The products of a model's blocks and head, each once. Where all tokens of a micro-batch would need more memory than
/// a gathered block, there are fewer rows.
std::vector<ProductShape> product_shapes(const Decoder& decoder, std::int64_t tokens);

/// The speed of a copy between two ranks in both directions at once.
struct PairSpeed {
  int first, second;  ///< world ranks
  bool is_on_node;    ///< they are on one node
  double gb_per_s;
};

struct PairSummary {
  std::string speeds;                 ///< " at 11.2 to 12.0 GB/s"; "" without pairs
  std::vector<std::string> warnings;  ///< of pairs that are slower than half of the median of their kind
};
PairSummary summarize(const std::vector<PairSpeed>& pairs);

class SniffTest final : public StepObserver {
 public:
  /// All of them must outlive the object.
  struct Input {
    ModelRuntime& runtime;
    RunClock& clock;
    const Logger& log;
    std::int64_t tokens;                 ///< of a rank's micro-batch
    std::int64_t every;                  ///< steps; 0: never
    std::filesystem::path exclude_file;  ///< see exclude_file.hpp; empty: none
    std::string arithmetic;              ///< products are compared between ranks where it is the same on all of them
  };

  /// Makes the first test. Collective. \throws RuntimeFailure as after_step()
  explicit SniffTest(Input input);

  /// \throws RuntimeFailure on all ranks, naming those that are wrong, before the step can be saved
  void after_step(const StepReport& step, bool last) override;

 private:
  /// Two ranks that are next to each other: on a node, or with the same place on two nodes.
  struct Pair {
    std::unique_ptr<ProcessGroup> ranks;
    bool is_on_node = false;
  };

  void add_pairs(ProcessGroup& ring, bool is_on_node);
  void test(std::int64_t step);
  std::size_t check_products(const std::string& state);
  std::int64_t check_axes(const std::string& state);
  std::string check_pairs(const std::string& state);
  void require_right(const std::string& what, const std::vector<WrongTransfer>& wrong, const std::string& text,
                     const std::string& state);

  Input input_;
  WrongRanks wrong_;
  std::vector<Pair> pairs_;
  bool computes_alike_ = false;  ///< all ranks round in the same way
};

}  // namespace fsdp::detail
