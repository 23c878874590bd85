#pragma once
// The differences between the versions of LibTorch that this project builds with. A check finds them where a check can
// tell (here, or in cmake/FindLibTorch.cmake), not the version's number.

// TORCH_VERSION and its parts; the header moved in 2.10.
#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>
#endif

namespace fsdp {

/// Before 2.9 each product by cuBLASLt has a workspace of its own, which ends with it; later one is kept.
#ifdef FSDP_LT_WORKSPACE_ENDS
inline constexpr bool kKeepsLtWorkspace = false;
#else
inline constexpr bool kKeepsLtWorkspace = true;
#endif

/// Whether PyTorch comes with a cuDNN whose attention it prefers on Hopper, newer than 9.15, as from 2.11 on; so where
/// it is not known.
#ifdef FSDP_OLD_CUDNN
inline constexpr bool kHasCudnnAttention = false;
#else
inline constexpr bool kHasCudnnAttention = true;
#endif

/// \param hooks  at::CUDAHooksInterface
/// \return the version of the cuDNN that is loaded; before 2.9 PyTorch tells only the one that it was compiled with
template <typename Hooks>
long loaded_cudnn(const Hooks& hooks) {
  if constexpr (requires { hooks.versionRuntimeCuDNN(); }) {
    return hooks.versionRuntimeCuDNN();
  } else {
    return hooks.versionCuDNN();
  }
}

}  // namespace fsdp
