#pragma once
// The differences between the versions of LibTorch that this project builds with. A check finds them where a check can
// tell (here, or in cmake/FindLibTorch.cmake), not the version's number.

// TORCH_VERSION and its parts; the header moved in 2.10.
#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/version.h>
#endif
