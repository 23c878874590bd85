#pragma once
// Parallel loops on LibTorch's threads. at::parallel_for() silently runs on the calling thread in files that are
// compiled without OpenMP, so only parallel.cpp, which is compiled with OpenMP, calls it.
#include <cstdint>
#include <functional>

namespace fsdp {

/// Calls body(begin, end) for pieces of [0, n) of at least `grain`, on up to at::get_num_threads() threads, and returns
/// when all are done. Pieces depend on the number of threads, so sums must not depend on piece boundaries. A nested
/// call runs on the calling thread. \throws what a body throws
void parallel_for(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace fsdp
