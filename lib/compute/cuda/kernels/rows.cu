#include "lib/compute/cuda/kernels/columns.cuh"
#include "lib/compute/cuda/kernels/gated.cuh"
#include "lib/compute/cuda/kernels/heads.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {

void LaunchedKernels::column_sums(const fused::ColumnSums& a) const {
  const dim3 grid{static_cast<unsigned>((a.dim + 31) / 32), static_cast<unsigned>(a.targets), 1};
  launch(cuda::column_sums, grid, kStripThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::column_pass(const fused::ColumnPass& a) const {
  using Kind = fused::ColumnPassKind;
  const auto strips = static_cast<unsigned>((a.dim + kStripColumns - 1) / kStripColumns);
  // Sums have as many blocks as there is room for; nothing else depends on their number.
  const auto blocks = a.partial != nullptr ? fused::column_blocks(a.rows) : (a.rows + 31) / 32;
  const dim3 grid{strips, static_cast<unsigned>(blocks > 65535 ? 65535 : blocks), 1};
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto kernel) { launch(kernel, grid, kStripThreads, stream(), a); };
    switch (a.kind) {
      case Kind::sum:
        return run(cuda::column_pass<T, Kind::sum>);
      case Kind::add_bias:
        return run(cuda::column_pass<T, Kind::add_bias>);
      case Kind::bias_gelu:
        return run(cuda::column_pass<T, Kind::bias_gelu>);
      case Kind::bias_gelu_backward:
        return run(cuda::column_pass<T, Kind::bias_gelu_backward>);
      case Kind::dropout:
        return run(cuda::column_pass<T, Kind::dropout>);
    }
  });
  check_launch();
}

void LaunchedKernels::dropout_keys(const fused::DropoutKeys& a) const {
  const dim3 grid{static_cast<unsigned>((a.rows + kStripThreads - 1) / kStripThreads), 1, 1};
  launch(cuda::dropout_keys, grid, kStripThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::gated(const fused::Gated& a) const {
  constexpr std::int64_t kOfBlock = 8 * kFlatThreads;
  const dim3 grid{static_cast<unsigned>((a.width + kOfBlock - 1) / kOfBlock),
                  static_cast<unsigned>(a.rows > 65535 ? 65535 : a.rows), 1};
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    const auto kernel = a.gelu ? (a.backward ? cuda::gated<T, true, true> : cuda::gated<T, false, true>)
                               : (a.backward ? cuda::gated<T, true, false> : cuda::gated<T, false, false>);
    launch(kernel, grid, kFlatThreads, stream(), a);
  });
  check_launch();
}

void LaunchedKernels::heads(const fused::Heads& a) const {
  with_type(a.type, [&](auto type) {
    const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
    launch(move_heads<decltype(type)>, grid, kHeadThreads, stream(), a);
  });
  check_launch();
}

}  // namespace fsdp::cuda
