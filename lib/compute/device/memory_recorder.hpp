#pragma once
// Memory of a run that does not happen: meta tensors stand for the real ones, and every allocation is written down.
//
// While a MemoryRecorder lives, meta tensors that its thread makes have an address (never to be touched) and are
// recorded with their true size. What runs above is a real run's own schedule; MetaOps (meta_ops.hpp) allocate what a
// device's operations allocate, and compute nothing.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

/// One allocation (bytes > 0) or its end (bytes < 0), in the order in which they happened.
struct MemoryRecord {
  std::int64_t bytes;
  std::int32_t block;  ///< counted from 0, one number per allocation; -1: ATen did not make it
  std::int32_t phase;  ///< index into MemoryLog::phases
  MemoryCategory category;
  bool on_host;  ///< beside a GPU: memory of the host (offloaded states, masks)
};

/// What the allocator is told between two records.
struct AllocatorMark {
  enum class Kind { empty_cache, begin_private, end_private };
  std::size_t record;  ///< it comes before this one
  Kind kind;
};

struct MemoryLog {
  std::vector<MemoryRecord> records;
  std::vector<AllocatorMark> marks;
  std::vector<std::string> phases{"start"};  ///< what the run was doing: "forward block 3"
};

/// What is written down. As an observer of the engine it writes down what the run is doing.
class MemoryTape final : public EngineObserver {
 public:
  /// \param beside_gpu  meta tensors stand for a GPU's, except where a MemoryScope says that they are the host's
  explicit MemoryTape(bool beside_gpu) : beside_gpu_(beside_gpu) {}

  const MemoryLog& log() const { return log_; }
  /// True when the tensor's memory was recorded as the host's beside a GPU.
  bool is_on_host(const at::Tensor& tensor) const { return on_host_.contains(tensor.storage().data()); }
  /// Memory that ATen does not allocate (shared windows); negative when it goes.
  void record_external(std::int64_t bytes);

  void mark(AllocatorMark::Kind kind) { log_.marks.push_back({log_.records.size(), kind}); }

  /// A phase, except where the optimizer works in place.
  void begin(std::string_view what, std::string_view category) override;
  void end() override {}

  struct Block {
    void* address;
    std::int64_t bytes;
    std::int32_t number;
    MemoryScope::Note note;
  };
  /// For the allocator of meta tensors.
  Block allocate(std::int64_t bytes);
  void free(const Block& block);

 private:
  void add(std::int64_t bytes, std::int32_t block, const MemoryScope::Note& note);

  bool beside_gpu_;
  MemoryLog log_;
  std::int32_t next_block_ = 0;
  std::unordered_set<const void*> on_host_;
};

/// Has a tape written for this thread's meta tensors, from construction to destruction. One at a time.
class MemoryRecorder {
 public:
  explicit MemoryRecorder(bool beside_gpu);
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;
  ~MemoryRecorder();

  /// Outlives the recorder where tensors do.
  const std::shared_ptr<MemoryTape>& tape() const { return tape_; }
  const MemoryLog& log() const { return tape_->log(); }

 private:
  std::shared_ptr<MemoryTape> tape_;
};

}  // namespace fsdp
