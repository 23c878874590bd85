#pragma once
// Of collectives that are done when they return; internal to lib/comm.
#include "lib/mpi/process_group.hpp"

namespace fsdp::detail {

class DoneWork final : public Work {
 public:
  void wait() override {}
};

}  // namespace fsdp::detail
