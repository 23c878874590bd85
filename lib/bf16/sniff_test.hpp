#pragma once
// Tests nodes within a training job, before its first step and every so many steps: multiplies and transfers known
// numbers in the job's own shapes and types, by its own products and collectives, and compares every bit. A node that
// gives wrong numbers now and then passes a single check (NVIDIA/nccl-tests, issue 172): each one is repeated.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
  bool trains;  ///< the weight has a gradient
  auto operator<=>(const ProductShape&) const = default;
};

/// \return numbers of the largest block
std::int64_t largest_block(const Decoder& decoder);
/// The products of a model's blocks, each once. Where all tokens of a micro-batch would need more memory than a
/// gathered block, there are fewer rows. The head, whose weight may be larger than a block, is left out. \param
/// trainable  by parameter
std::vector<ProductShape> product_shapes(const Decoder& decoder, const std::vector<bool>& trainable,
                                         std::int64_t tokens);

/// The speed of a copy between two ranks in both directions at once.
struct PairSpeed {
  int first, second;  ///< world ranks
  double gb_per_s;
};

/// Compares copies with those before the first step: which links are fast is the machine's matter.
class PairSpeeds {
 public:
  /// \return " at 11.2 to 12.0 GB/s"; "" without pairs
  static std::string range(const std::vector<PairSpeed>& pairs);
  /// \return a warning for each pair that is slower than half of what it was when it was first seen
  std::vector<std::string> warnings(const std::vector<PairSpeed>& pairs);

 private:
  std::map<std::pair<int, int>, double> first_;
};

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
    std::function<void()> takes_memory;  ///< called before a test, whose memory is not the step's
  };

  /// Makes the first test. Collective. \throws RuntimeFailure as after_step()
  explicit SniffTest(Input input);

  /// \throws RuntimeFailure on all ranks, naming those that are wrong, before the step can be saved
  void after_step(const StepReport& step, bool last) override;

 private:
  /// Wrong numbers that were transferred along an axis of the mesh.
  struct WrongAxis {
    std::string what;
    std::vector<int> ranks;  ///< world ranks of the group in which they were
  };
  struct PairResults {
    std::vector<WrongTransfer> wrong;  ///< on rank 0, those of all ranks
    std::string text;                  ///< of the first
    std::string speeds;                ///< of all pairs
  };

  void add_pairs(ProcessGroup& ring);
  void test(std::int64_t step);
  std::size_t check_products(const std::string& state);
  std::optional<WrongAxis> check_axes(std::int64_t bytes);
  PairResults check_pairs();
  void judge(const std::optional<WrongAxis>& axis, const PairResults& pairs, const std::string& state);

  Input input_;
  WrongRanks wrong_;
  std::vector<std::unique_ptr<ProcessGroup>>
      pairs_;  ///< this rank and a neighbour: on its node, or with its place on another
  PairSpeeds speeds_;
  bool computes_alike_ = false;  ///< all ranks round in the same way
};

}  // namespace fsdp::detail
