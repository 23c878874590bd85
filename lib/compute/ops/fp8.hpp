#pragma once
// Matrices in 8 bits and their products: per-tensor scales from each matrix's own largest value (dynamic scaling), as
// torchao's tensorwise recipe has them (Float8LinearConfig, torchao 0.18: float8_utils.py, float8_ops.py). Numbers of
// forward factors are e4m3, of gradients e5m2 (Micikevicius et al., arXiv:2209.05433). GPUs multiply along the last
// dimension of both factors alone, so a backward also takes matrices by columns.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp {

/// Sizes of products in 8 bits are multiples of this.
inline constexpr std::int64_t kFp8Multiple = 16;
/// GPUs take these sizes; others stay with 16 or 32 bits.
bool can_be_fp8(std::int64_t rows, std::int64_t columns);
/// Of a matrix by columns: `rows` up to a multiple of kFp8Multiple.
std::int64_t fp8_padded(std::int64_t rows);

/// Whether an option of types that products have asks for these: Float8_e4m3fn stands for them.
bool asks_for_fp8(const std::optional<at::ScalarType>& compute_dtype);

/// e4m3: 3 bits behind the point, up to 448; e5m2: 2 bits, up to 57344.
enum class Fp8Format : std::uint8_t { e4m3, e5m2 };
at::ScalarType fp8_type(Fp8Format format);
/// Its largest number.
double fp8_max(Fp8Format format);

/// What elements are multiplied with, by the largest absolute value; in float64 and rounded once, as torchao has it.
float fp8_scale(float largest, Fp8Format format);

/// In which order a product wants the elements.
enum class Fp8Sides : std::uint8_t { rows, columns, both };

/// A matrix [R, C] in 8 bits. What was not asked for is undefined.
struct Fp8Matrix {
  at::Tensor rows_RC;
  at::Tensor columns_CR;  ///< its transpose, R up to a multiple of kFp8Multiple: zeros
  at::Tensor inverse;     ///< float32 [1]: what an element is to be multiplied with
};

/// Whether a GPU's product can be written there: its rows begin at multiples of 16 bytes.
bool can_take_fp8(const at::Tensor& out);

/// A factor of a product: [rows, inner].
struct Fp8Factor {
  const at::Tensor& values;
  const at::Tensor& inverse;
};

/// Why a GPU of that compute capability (10 * major + minor) has no such products; empty: it has.
std::string gpu_fp8_problem(int compute_capability);

/// How numbers add up: `fast` gives up bits of sums on the way (Hopper's), as torchao does in forwards alone.
enum class Fp8Sums : std::uint8_t { fast, exact };

class Fp8Products {
 public:
  virtual ~Fp8Products() = default;
  /// How they are multiplied, for people: "float8 emulated in float32".
  virtual std::string fp8_way() const;
  /// Why this device has none; empty: it has.
  virtual std::string fp8_problem() const;
  /// \param x_RC  float32 or 16 bits, at least one element, rows anywhere; C is a multiple of kFp8Multiple. Where an
  ///              element is not finite, nothing that a product makes of it is
  Fp8Matrix to_fp8(const at::Tensor& x_RC, Fp8Format format, Fp8Sides sides) const;
  /// float32 [n], the largest of which is x's largest absolute value; n depends on its rows alone.
  virtual at::Tensor fp8_largest(const at::Tensor& x_RC) const;
  /// x with the scale that follows from the largest of `largest`: of x itself, or of a matrix that it is a part of.
  /// \param made  what of it is defined is written into
  virtual Fp8Matrix fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                             Fp8Matrix made = {}) const;
  /// The columns_CR of codes. \param rows_RC  contiguous, both sides multiples of kFp8Multiple
  virtual at::Tensor fp8_columns(const at::Tensor& rows_RC) const;
  /// out (+)= a b^T, rounded into out's type (float32 or 16 bits); what is added is rounded first.
  virtual void fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums sums, bool add) const;

 protected:
  /// out (+)= a @ b
  virtual void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const = 0;
};

}  // namespace fsdp

// Tensors that a cast into 8 bits writes; internal to lib/compute/ops.

namespace fsdp::detail {

/// What is asked for and not there yet. \param codes  options of the codes
void make_room(Fp8Matrix& made, const at::Tensor& x_RC, const at::TensorOptions& codes, Fp8Sides sides);

}  // namespace fsdp::detail
