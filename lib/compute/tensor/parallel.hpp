#pragma once
// Work of the host's kernels on LibTorch's threads. at::parallel_for() in a file that is compiled without OpenMP runs
// on the calling thread alone, without a word: only parallel.cpp, which is compiled with it, calls it.
#include <cstdint>
#include <functional>

namespace fsdp {

/// body(begin, end) for parts of [0, n) of at least `grain`, on up to at::get_num_threads() threads at once; returns
/// when all have. Parts depend on the number of threads: whoever adds up over several elements must not depend on them.
/// Within a body, on its thread alone. \throws what a body throws
void parallel_for(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace fsdp
