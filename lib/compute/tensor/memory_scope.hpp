#pragma once
// Purpose of allocations, which the memory prediction (lib/planning/memory) reports by category. Nothing else reads it.
#include <string_view>

namespace fsdp {

enum class MemoryCategory {
  parameters,      ///< master weights, and this rank's rows in the gathered dtype
  gradients,       ///< float32 shards
  optimizer,       ///< optimizer state
  gathered,        ///< parameters of other ranks' rows
  reduce_buffers,  ///< a unit's full gradients on their way to the shards
  activations,     ///< outputs of layers, and what they keep for their backward
  logits,          ///< head and loss
  batch,           ///< token ids and targets
  workspace        ///< temporary buffers of libraries
};
inline constexpr int kNumMemoryCategories = 9;
std::string_view to_string(MemoryCategory category);

/// Sets the category of this thread's allocations from construction to destruction.
class MemoryScope {
 public:
  /// \param on_host  the allocations are host memory even in a GPU run
  explicit MemoryScope(MemoryCategory category, bool on_host = false);
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  ~MemoryScope();

  struct Note {
    MemoryCategory category = MemoryCategory::activations;
    bool on_host = false;
  };
  /// \return the note of the innermost scope
  static Note current();

 private:
  Note before_;
};

}  // namespace fsdp
