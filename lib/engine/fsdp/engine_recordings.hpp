#pragma once
// Micro-batches as recorded work; internal to lib/fsdp.
//
// What a micro-batch asks of the device is the same each time, for the same shape and place in its step: only what it
// reads differs, and that is copied to where the recording reads it. Rows that share documents differ in more, and run
// as they come; so does whatever crosses ranks.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "lib/compute/ops/work_recorder.hpp"
#include "lib/engine/fsdp/engine_unit.hpp"

namespace fsdp {

class Engine::Recordings {
 public:
  explicit Recordings(Engine& engine) : engine_(engine) {}

  /// \return none: it is to run as it comes
  std::optional<LossSum> run(const MicroBatch& batch, MicroBatchPlace place, double grad_scale);
  /// Runs it, and again where memory ran out that recordings keep. \throws GradientsLost, c10::OutOfMemoryError
  LossSum with_room(Redo redo, const std::function<LossSum()>& micro_batch);
  const RecordingCounts& counts() const { return counts_; }

 private:
  /// Rows, tokens of a row, whether it is the first and the last of its step, and whether there is dropout.
  using Key = std::tuple<std::int64_t, std::int64_t, bool, bool, bool>;
  /// Where recordings of one shape read.
  struct Inputs {
    MicroBatch batch;
    at::Tensor scale;  ///< float32 [1]
  };
  struct Recording {
    std::int64_t seen_in_step = 0;  ///< first
    bool is_refused = false;        ///< by the device
    std::unique_ptr<RecordedWork> work;
    LossSum loss;
  };
  bool takes(const MicroBatch& batch, MicroBatchPlace place, double grad_scale) const;
  Inputs& fill(const MicroBatch& batch, double grad_scale);
  bool record(Recording& recording, const Inputs& inputs, MicroBatchPlace place, double grad_scale);
  void follow(MicroBatchPlace place);
  bool keep_memory() const;
  std::vector<bool> gathered_units() const;
  void stand_as_before(const std::vector<bool>& gathered);

  Engine& engine_;
  std::map<Key, Recording> recordings_;
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, Inputs> inputs_;
  std::int64_t step_ = 0;
  bool cache_is_others_ = false;  ///< what was given up has become that of evaluations
  RecordingCounts counts_;
};

}  // namespace fsdp
