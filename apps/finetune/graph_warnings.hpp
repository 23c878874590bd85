#pragma once
// What became of CUDA graphs, where it is not what was asked for.
#include <cstdint>

#include "apps/finetune/run_context.hpp"

namespace fsdp::detail {

class GraphWarnings {
 public:
  explicit GraphWarnings(const RunContext& context) : context_(context) {}
  /// Lines of the log for what has happened since the last call.
  void tell();

 private:
  const RunContext& context_;
  std::int64_t refused_ = 0;  ///< of those that were told
  bool told_of_memory_ = false;
};

}  // namespace fsdp::detail
