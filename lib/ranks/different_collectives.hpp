#pragma once
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Ranks make different collectives: no node's fault.
class DifferentCollectives : public StuckFailure {
 public:
  using StuckFailure::StuckFailure;
};

}  // namespace fsdp
