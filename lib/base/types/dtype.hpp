#pragma once
// Element types of tensors in checkpoint formats. Does not depend on LibTorch.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace fsdp {

enum class DType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, u16, u32, u64, f8_e4m3fn, f8_e5m2, c64, c128 };

/// How a real number is stored: a sign bit, `exponent_bits` and `mantissa_bits`. With `has_infinity`, the largest
/// exponent means infinity and NaN; without it, only all ones mean NaN.
struct FloatFormat {
  int exponent_bits = 0, mantissa_bits = 0;
  bool has_infinity = true;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int sign_shift() const { return exponent_bits + mantissa_bits; }
  std::uint64_t infinity() const { return ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits; }
  std::uint64_t mantissa_mask() const { return (std::uint64_t{1} << mantissa_bits) - 1; }
  std::uint64_t all_ones() const { return (std::uint64_t{1} << sign_shift()) - 1; }
};

enum class NumberKind { unsigned_integer, signed_integer, real, complex };

/// All that the toolkit knows of an element type. A new type is a name in DType and a row in dtype.cpp.
struct DTypeRow {
  DType dtype;
  std::size_t size_bytes;          ///< of one element
  std::string_view torch;          ///< name in PyTorch without the module, which LibTorch knows too
  std::string_view storage_class;  ///< in the module torch; empty for newer types, which are saved as untyped storages
  std::string_view safetensors;
  int safetensors_order;  ///< tensors of a larger one come first. Source: safetensors 0.8, tensor.rs (Dtype)
  NumberKind kind;
  FloatFormat format = {};  ///< of real numbers, and of both parts of complex ones
};

/// In the order of DType.
std::span<const DTypeRow> dtype_rows();
const DTypeRow& dtype_row(DType dtype);

/// Bytes of one element.
std::size_t dtype_size_bytes(DType dtype);
/// True for floating-point types, complex ones left out.
bool is_float(DType dtype);
bool is_complex(DType dtype);
/// Name in safetensors ("F32", "BF16", ...). \throws RequestError for complex types, which are read and not written
std::string_view safetensors_name(DType dtype);
/// \throws FormatError naming an unknown name
DType dtype_from_safetensors(std::string_view name);
/// Name in PyTorch without the module ("float32", "bfloat16", ...).
std::string_view torch_name(DType dtype);
/// \throws FormatError naming an unknown name
DType dtype_from_torch(std::string_view name);
/// The type of the elements in a storage of this class of the module torch; nothing for an unknown class.
std::optional<DType> dtype_from_storage_class(std::string_view name);

}  // namespace fsdp
