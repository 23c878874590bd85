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
