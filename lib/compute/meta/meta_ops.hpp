#pragma once
// Operations that allocate what the real ones allocate, on meta tensors that a MemoryRecorder writes down, and compute
// nothing. Loops whose passes are all alike run a few of them: a batch that could never be run may have millions.
#include <memory>

#include "lib/base/work.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// \param work     where they write down what they would do
/// \param threads  of a rank: libraries take room for each
std::unique_ptr<Ops> make_meta_cpu_ops(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work, int threads);
std::unique_ptr<Ops> make_meta_cuda_ops(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work,
                                        const GpuSpec& gpu);

namespace detail {

/// What both have in common.
class MetaPlace {
 public:
  explicit MetaPlace(std::shared_ptr<MemoryTape> tape) : tape_(std::move(tape)) {}
  MemoryTape& tape() const { return *tape_; }
  static at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype);
  /// So many of a loop's passes are run, and its last.
  static constexpr std::int64_t kRepeats = 16;
  /// It updates in place; only its scalars take room.
  static void adamw(const AdamWUpdate& update);

 private:
  std::shared_ptr<MemoryTape> tape_;
};

}  // namespace detail
}  // namespace fsdp
