// The only file that is compiled with OpenMP (CMakeLists.txt).
#include "lib/compute/tensor/parallel.hpp"

#include <ATen/Parallel.h>

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for() would run on one thread"
#endif

namespace fsdp {

void parallel_for(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body) {
  at::parallel_for(0, n, grain, body);
}

}  // namespace fsdp
