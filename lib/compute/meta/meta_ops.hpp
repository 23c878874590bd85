#pragma once
// Operations for predictions: they allocate what the real operations allocate, on meta tensors that a MemoryRecorder
// records, and compute nothing. Loops with equal iterations run only a few of them.
#include <memory>

#include "lib/base/types/work.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// \param work     receives the work of each operation
/// \param threads  threads of a rank; libraries allocate buffers for each
std::unique_ptr<Ops> make_meta_cpu_ops(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work, int threads);
std::unique_ptr<Ops> make_meta_cuda_ops(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work,
                                        const GpuSpec& gpu);

namespace detail {

/// Common part of the CPU and CUDA versions.
class MetaDevice {
 public:
  explicit MetaDevice(std::shared_ptr<MemoryTape> tape) : tape_(std::move(tape)) {}
  MemoryTape& tape() const { return *tape_; }
  static at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype);
  /// Iterations of a loop that run, besides the last one.
  static constexpr std::int64_t kRepeats = 16;
  /// AdamW updates in place; only its scalars are allocated.
  static void adamw(const AdamWUpdate& update);

 private:
  std::shared_ptr<MemoryTape> tape_;
};

}  // namespace detail
}  // namespace fsdp
