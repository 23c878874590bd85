// Compiled once per instruction set with FSDP_KERNEL_ISA set to its name; see lib/compute/kernels/CMakeLists.txt.
#include "lib/compute/kernels/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fsdp::kernels::FSDP_KERNEL_ISA {
namespace {

// The others use what element.hpp has.
// clang-format off
#include "lib/compute/kernels/element.hpp"
#include "lib/compute/kernels/blockwise.hpp"
#include "lib/compute/kernels/flat.hpp"
#include "lib/compute/kernels/llama.hpp"
#include "lib/compute/kernels/optim.hpp"
#include "lib/compute/kernels/rowwise.hpp"
#include "lib/compute/kernels/softmax.hpp"
// clang-format on

// Calls KERNEL<storage type> for a runtime Type.
#define FSDP_FOR_TYPE(kernel, ...)       \
  switch (type) {                        \
    case Type::bf16:                     \
      return kernel<Bf16>(__VA_ARGS__);  \
    case Type::f16:                      \
      return kernel<F16>(__VA_ARGS__);   \
    default:                             \
      return kernel<float>(__VA_ARGS__); \
  }

}  // namespace

// NOLINTBEGIN(bugprone-macro-parentheses)
extern const Table kTable;
const Table kTable = {
    .name = FSDP_KERNEL_ISA_NAME,
    .embed = [](Type type, const EmbedArgs& a, std::int64_t b, std::int64_t e) { FSDP_FOR_TYPE(embed, a, b, e) },
    .layer_norm = [](Type type, const NormArgs& a, std::int64_t b,
                     std::int64_t e) { FSDP_FOR_TYPE(layer_norm, a, b, e) },
    .layer_norm_backward = [](Type type, const NormBackwardArgs& a, std::int64_t b,
                              std::int64_t e) { FSDP_FOR_TYPE(layer_norm_backward, a, b, e) },
    .bias_gelu = [](Type type, const GeluArgs& a, std::int64_t b, std::int64_t e) { FSDP_FOR_TYPE(bias_gelu, a, b, e) },
    .bias_gelu_backward = [](Type type, const GeluBackwardArgs& a, std::int64_t b,
                             std::int64_t e) { FSDP_FOR_TYPE(bias_gelu_backward, a, b, e) },
    .causal_softmax = [](Type type, const SoftmaxArgs& a, std::int64_t b,
                         std::int64_t e) { FSDP_FOR_TYPE(causal_softmax, a, b, e) },
    .causal_softmax_backward = [](Type type, const SoftmaxBackwardArgs& a, std::int64_t b,
                                  std::int64_t e) { FSDP_FOR_TYPE(causal_softmax_backward, a, b, e) },
    .band_softmax = [](Type type, const BandSoftmaxArgs& a, std::int64_t b,
                       std::int64_t e) { FSDP_FOR_TYPE(band_softmax, a, b, e) },
    .band_softmax_backward = [](Type type, const BandSoftmaxBackwardArgs& a, std::int64_t b,
                                std::int64_t e) { FSDP_FOR_TYPE(band_softmax_backward, a, b, e) },
    .cross_entropy = [](Type type, const CrossEntropyArgs& a, std::int64_t b,
                        std::int64_t e) { FSDP_FOR_TYPE(cross_entropy, a, b, e) },
    .dropout = [](Type type, const DropoutArgs& a, std::int64_t b, std::int64_t e) { FSDP_FOR_TYPE(dropout, a, b, e) },
    .rms_norm = [](Type type, const RmsNormArgs& a, std::int64_t b,
                   std::int64_t e) { FSDP_FOR_TYPE(rms_norm, a, b, e) },
    .rms_norm_backward = [](Type type, const RmsNormBackwardArgs& a, std::int64_t b,
                            std::int64_t e) { FSDP_FOR_TYPE(rms_norm_backward, a, b, e) },
    .gated = [](Type type, const GatedArgs& a, std::int64_t b, std::int64_t e) { FSDP_FOR_TYPE(gated, a, b, e) },
    .gated_backward = [](Type type, const GatedBackwardArgs& a, std::int64_t b,
                         std::int64_t e) { FSDP_FOR_TYPE(gated_backward, a, b, e) },
    .rope = [](Type type, const RopeArgs& a, std::int64_t b, std::int64_t e) { FSDP_FOR_TYPE(rope, a, b, e) },
    .add_bias = [](Type type, void* x, const void* y, const void* bias, std::int64_t dim, std::int64_t b,
                   std::int64_t e) { FSDP_FOR_TYPE(add_bias, x, y, bias, dim, b, e) },
    .column_sum = [](Type type, const void* x, float* sum, std::int64_t dim, std::int64_t b,
                     std::int64_t e) { FSDP_FOR_TYPE(column_sum, x, sum, dim, b, e) },
    .sum_sources = [](Type type, float* out, const void* const* sources, int n, bool accumulate, std::int64_t b,
                      std::int64_t e) { FSDP_FOR_TYPE(sum_sources, out, sources, n, accumulate, b, e) },
    .narrow = [](Type type, void* out, const float* in, std::int64_t b,
                 std::int64_t e) { FSDP_FOR_TYPE(narrow, out, in, b, e) },
    .upcast_add = [](Type type, float* out, const void* in, std::int64_t b,
                     std::int64_t e) { FSDP_FOR_TYPE(upcast_add, out, in, b, e) },
    .sum_squares = sum_squares,
    .has_non_finite = has_non_finite,
    .quantize_nf4 = quantize_nf4,
    .dequantize_nf4 = [](Type type, const Nf4Args& a, std::int64_t b,
                         std::int64_t e) { FSDP_FOR_TYPE(dequantize_nf4, a, b, e) },
    .updates = kUpdates,
    .blockwise = blockwise,
    .blockwise_largest = blockwise_largest,
    .adafactor_rows = adafactor_rows,
    .adafactor_sizes = adafactor_sizes,
    .adafactor_apply = adafactor_apply,
    .adafactor_columns = adafactor_columns,
    .adafactor_column_means = adafactor_column_means,
};
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace fsdp::kernels::FSDP_KERNEL_ISA
