#pragma once
// Fp8 matrices, which Ops casts and multiplies. Each matrix has one scale, computed from its own largest absolute value
// (dynamic tensorwise scaling, as torchao 0.18: Float8LinearConfig, float8_utils.py, float8_ops.py). Forward factors
// are e4m3, gradients e5m2 (Micikevicius et al., arXiv:2209.05433). GPUs contract the last dimension of both factors
// only, so the backward needs transposed copies.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp {

/// Sizes of fp8 products are multiples of this number (cuBLASLt).
inline constexpr std::int64_t kFp8Multiple = 16;
/// True if a weight of this size can be multiplied in fp8; other weights stay in 16 or 32 bits.
bool can_be_fp8(std::int64_t rows, std::int64_t columns);
/// \return `rows` rounded up to a multiple of kFp8Multiple: row length of Fp8Matrix::columns_CR
std::int64_t fp8_padded(std::int64_t rows);

/// True if the option for the compute dtype selects fp8 products, which Float8_e4m3fn stands for.
bool asks_for_fp8(const std::optional<at::ScalarType>& compute_dtype);

/// e4m3: 3 mantissa bits, maximum 448; e5m2: 2 mantissa bits, maximum 57344.
enum class Fp8Format : std::uint8_t { e4m3, e5m2 };
at::ScalarType fp8_type(Fp8Format format);
/// Largest finite number of the format.
double fp8_max(Fp8Format format);

/// \return the factor that elements are multiplied by before the cast: fp8_max / largest, computed in float64 and
/// rounded once, as torchao does. \param largest  largest absolute value of the matrix
float fp8_scale(float largest, Fp8Format format);

/// Layouts that a cast writes: by rows, transposed, or both.
enum class Fp8Sides : std::uint8_t { rows, columns, both };

/// An fp8 matrix [R, C]. Layouts that were not requested are undefined.
struct Fp8Matrix {
  at::Tensor rows_RC;
  at::Tensor columns_CR;    ///< transpose, zero-padded to [C, fp8_padded(R)]
  at::Tensor inverse;       ///< float32 [1]: factor that restores an element, 1 / scale
  at::Tensor largest = {};  ///< Ops::fp8_largest() of a matrix that to_fp8() cast, for a second cast; else undefined
};

/// True if a GPU's fp8 product can write to `out`: rows start at multiples of 16 bytes and are contiguous.
bool can_take_fp8(const at::Tensor& out);

/// A factor of a product: [rows, inner].
struct Fp8Factor {
  const at::Tensor& values;
  const at::Tensor& inverse;
};

/// \return why a GPU of this compute capability (10 * major + minor) has no fp8 products; empty if it has
std::string gpu_fp8_problem(int compute_capability);

/// Accumulation: `fast` keeps fewer bits of partial sums (on Hopper); torchao uses it in the forward only.
enum class Fp8Sums : std::uint8_t { fast, exact };

namespace detail {

/// Allocates the requested tensors of `made` that are undefined. \param codes  options of the fp8 codes
void make_room(Fp8Matrix& made, const at::Tensor& x_RC, const at::TensorOptions& codes, Fp8Sides sides);

}  // namespace detail

}  // namespace fsdp
