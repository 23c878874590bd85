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
    .cross_entropy = [](Type type, const CrossEntropyArgs& a, std::int64_t b,
                        std::int64_t e) { FSDP_FOR_TYPE(cross_entropy, a, b, e) },
    .entropies = [](Type type, const EntropyArgs& a, std::int64_t b,
                    std::int64_t e) { FSDP_FOR_TYPE(entropies, a, b, e) },
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
#define FSDP_DEFINE(kernel, Args) \
  .kernel = [](Type type, const Args& a, std::int64_t b, std::int64_t e) { FSDP_FOR_TYPE(kernel, a, b, e) },
    FSDP_ROW_KERNELS(FSDP_DEFINE)
#undef FSDP_DEFINE
};
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace fsdp::kernels::FSDP_KERNEL_ISA
