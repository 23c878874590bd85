#pragma once
// The one formula of gradient clipping, for the host and for kernels of a GPU.

#ifdef __CUDACC__
#define FSDP_HOST_DEVICE __host__ __device__
#else
#define FSDP_HOST_DEVICE
#endif

namespace fsdp {

/// \return the divisor of gradients that include loss_scale: with the factor of torch.nn.utils.clip_grad_norm_, which
/// is at most 1. \param norm  of these gradients. \param clip_norm  maximum without loss_scale; 0: no clipping
FSDP_HOST_DEVICE inline double clip_divisor(double norm, double loss_scale, double clip_norm) {
  const double factor = clip_norm / (norm / loss_scale + 1e-6);
  return clip_norm > 0 && factor < 1.0 ? loss_scale / factor : loss_scale;
}

}  // namespace fsdp
