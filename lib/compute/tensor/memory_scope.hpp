#pragma once
// What memory is for. A note for who records allocations (lib/planning/memory); nothing else reads it.
#include <string_view>

namespace fsdp {

enum class MemoryCategory {
  parameters,      ///< master weights, and this rank's rows in the gathered dtype
  gradients,       ///< float32 shards
  optimizer,       ///< its state
  gathered,        ///< parameters of other ranks' rows
  reduce_buffers,  ///< a unit's full gradients on their way to the shards
  activations,     ///< outputs of layers, and what they keep for their backward
  logits,          ///< head and loss
  batch,           ///< ids and targets
  workspace        ///< libraries' own
};
inline constexpr int kNumMemoryCategories = 9;
std::string_view to_string(MemoryCategory category);

/// What this thread's allocations are for, from construction to destruction.
class MemoryScope {
 public:
  /// \param on_host  it is the host's memory, whatever the device
  explicit MemoryScope(MemoryCategory category, bool on_host = false);
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  ~MemoryScope();

  struct Note {
    MemoryCategory category = MemoryCategory::activations;
    bool on_host = false;
  };
  /// Of the innermost scope.
  static Note current();

 private:
  Note before_;
};

}  // namespace fsdp
