#pragma once
// Records the memory of a simulated run, in which meta tensors replace the real ones.
//
// While a MemoryRecorder exists, meta tensors that its thread creates have an address (which must not be accessed), and
// their allocations are recorded with the real sizes. The engine runs its real schedule; the operations of meta_ops.hpp
// allocate what a device's operations allocate, and compute nothing.
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
  std::int32_t block;  ///< number of the allocation, from 0; -1: not allocated by ATen
  std::int32_t phase;  ///< index into MemoryLog::phases
  MemoryCategory category;
  bool on_host;  ///< in a GPU run: host memory (offloaded states, masks)
};

/// A call to the caching allocator between two records.
struct AllocatorMark {
  enum class Kind { empty_cache, begin_private, end_private };
  std::size_t record;  ///< index of the record that follows
  Kind kind;
};

struct MemoryLog {
  std::vector<MemoryRecord> records;
  std::vector<AllocatorMark> marks;
  std::vector<std::string> phases{"start"};  ///< phases of the run: "forward block 3"
};

/// Log of allocations, and of phases as an observer of the engine.
class MemoryTape final : public EngineObserver {
 public:
  /// \param beside_gpu  meta tensors stand for GPU tensors, except in a MemoryScope with on_host
  explicit MemoryTape(bool beside_gpu) : beside_gpu_(beside_gpu) {}

  const MemoryLog& log() const { return log_; }
  /// True if the tensor was recorded as host memory of a GPU run.
  bool is_on_host(const at::Tensor& tensor) const { return on_host_.contains(tensor.storage().data()); }
  /// Records memory that ATen does not allocate (shared-memory segments); negative when it is freed.
  void record_external(std::int64_t bytes);

  void mark(AllocatorMark::Kind kind) { log_.marks.push_back({log_.records.size(), kind}); }

  /// Starts a phase; category "optimizer" is ignored.
  void begin(std::string_view what, std::string_view category) override;
  void end() override {}

  struct Block {
    void* address;
    std::int64_t bytes;
    std::int32_t number;
    MemoryScope::Note note;
  };
  /// Called by the allocator of meta tensors.
  Block allocate(std::int64_t bytes);
  void free(const Block& block);

 private:
  void add(std::int64_t bytes, std::int32_t block, const MemoryScope::Note& note);

  bool beside_gpu_;
  MemoryLog log_;
  std::int32_t next_block_ = 0;
  std::unordered_set<const void*> on_host_;
};

/// Records this thread's meta tensors from construction to destruction. At most one per thread exists at a time.
class MemoryRecorder {
 public:
  explicit MemoryRecorder(bool beside_gpu);
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;
  ~MemoryRecorder();

  /// Outlives the recorder if tensors do.
  const std::shared_ptr<MemoryTape>& tape() const { return tape_; }
  const MemoryLog& log() const { return tape_->log(); }

 private:
  std::shared_ptr<MemoryTape> tape_;
};

}  // namespace fsdp
