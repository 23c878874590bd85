#pragma once
// Nested types of Engine: a running micro-batch, and the cache of CUDA graphs. Internal to lib/engine/fsdp.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lib/compute/ops/device_work.hpp"
#include "lib/engine/fsdp/engine.hpp"

namespace fsdp {

/// State of one running micro-batch.
struct Engine::Run {
  const MicroBatch& batch;
  MicroBatchPosition place = {};
  GradScale grad_scale = 0.0;
  bool training = false;
  at::Tensor x_ND = {};                 ///< activation between layers
  at::Tensor grad_ND = {};              ///< gradient between layers
  std::vector<at::Tensor> inputs = {};  ///< inputs of checkpointed layers, by layer
  std::vector<std::unique_ptr<LayerState>> states = {};
  StepSums sums = {};

  StepContext context() { return {batch, grad_scale, &sums}; }
  /// For a forward that is repeated.
  StepContext context_again() const { return {batch, grad_scale, nullptr}; }
};

/// CUDA graphs of micro-batches.
///
/// Micro-batches of one shape and one position in the step launch the same work and differ only in their inputs. The
/// cache copies the inputs to the addresses that the graph reads and replays the graph. Packed batches, those with a
/// joint loss, and work that crosses ranks, are not captured.
class Engine::GraphCache {
 public:
  explicit GraphCache(Engine& engine) : engine_(engine) {}

  /// Replays the graph of the micro-batch, or captures and then replays one.
  /// \return nullopt: the caller must run the micro-batch without a graph
  std::optional<StepSums> run(const MicroBatch& batch, MicroBatchPosition place, double grad_scale);
  /// Whether such a micro-batch can become a graph, the first time without one included.
  bool is_capturable(const MicroBatch& batch, MicroBatchPosition place, double grad_scale) const;
  const RecordingCounts& counts() const { return counts_; }

 private:
  /// Rows, tokens per row, has dropout, has weights, has groups.
  using Shape = std::tuple<std::int64_t, std::int64_t, bool, bool, bool>;
  /// Shape, first of its step, last of its step.
  using Key = std::tuple<Shape, bool, bool>;
  /// The tensors that all graphs of one shape read.
  struct Inputs {
    MicroBatch batch;
    at::Tensor scale;  ///< float32 [1]
  };
  struct Graph {
    std::int64_t seen_in_step = 0;  ///< number of the step that first had this key
    bool is_refused = false;        ///< the device could not capture it
    std::unique_ptr<RecordedWork> work;
    StepSums sums;
  };
  static Shape shape_of(const MicroBatch& batch);
  Inputs& copy_inputs(const MicroBatch& batch, double grad_scale);
  bool capture(Graph& graph, const Inputs& inputs, MicroBatchPosition place, double grad_scale);
  void apply_replay(MicroBatchPosition place);
  std::vector<bool> gathered_units() const;
  void roll_back(const std::vector<bool>& gathered);

  Engine& engine_;
  std::map<Key, Graph> graphs_;
  std::map<Shape, Inputs> inputs_;
  std::int64_t step_ = 0;
  RecordingCounts counts_;
};

}  // namespace fsdp
