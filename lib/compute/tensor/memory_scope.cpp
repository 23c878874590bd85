#include "lib/compute/tensor/memory_scope.hpp"

#include <array>
#include <cstddef>

#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

MemoryScope::Note& here() {
  thread_local MemoryScope::Note note;
  return note;
}

}  // namespace

std::string_view to_string(MemoryCategory category) {
  constexpr std::array<std::string_view, kNumMemoryCategories> kNames{"parameters", "gradients",      "optimizer",
                                                                      "gathered",   "reduce_buffers", "activations",
                                                                      "logits",     "batch",          "workspace"};
  return kNames.at(to_index(category));
}

MemoryScope::MemoryScope(MemoryCategory category, bool on_host) : before_(here()) { here() = {category, on_host}; }
MemoryScope::~MemoryScope() { here() = before_; }
MemoryScope::Note MemoryScope::current() { return here(); }

}  // namespace fsdp
