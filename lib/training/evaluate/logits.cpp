#include "lib/training/evaluate/logits.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace fsdp {

void forward_logits(ModelRuntime& runtime, const MicroBatch& batch, const LogitsBody& body) {
  const at::NoGradGuard no_grad;
  // As many as the loss of training takes at once: fewer rows slow the matrix product down.
  constexpr std::int64_t kRows = 512, kSmall_bytes = std::int64_t{16} << 20;
  const auto row_bytes = runtime.decoder().config.vocab_size * static_cast<std::int64_t>(sizeof(float));
  const auto piece = std::max(kRows, kSmall_bytes / row_bytes);
  const auto& head = *runtime.decoder().loss;
  runtime.engine().evaluate(batch, [&](LayerParams params, const at::Tensor& x_ND) {
    const auto tokens = x_ND.size(0);
    for (std::int64_t first = 0; first < tokens; first += piece) {
      auto logits_NV = head.logits(params, x_ND.narrow(0, first, std::min(piece, tokens - first)));
      // Its rows may be padded: seen with the padding they need not be copied.
      logits_NV = logits_NV.as_strided({logits_NV.size(0), logits_NV.stride(0)}, {logits_NV.stride(0), 1});
      body(first, logits_NV);
    }
    return LossSum{};
  });
}

}  // namespace fsdp
