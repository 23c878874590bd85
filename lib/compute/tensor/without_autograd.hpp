#pragma once
// How the library runs PyTorch's operators: it computes its gradients itself (lib/models/layers).
#include <ATen/core/LegacyTypeDispatch.h>

namespace fsdp {

/// While an object lives, operators of this thread skip PyTorch's autograd: no gradient is recorded, a view does not
/// remember its base, and a write does not count as a version. A call goes through one dispatch instead of three.
/// Tensors that are made meanwhile are ordinary ones, unlike those of c10::InferenceMode, which refuse writes outside
/// of it.
using WithoutAutograd = at::AutoDispatchBelowADInplaceOrView;

}  // namespace fsdp
