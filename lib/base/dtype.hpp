#pragma once
// Element types of tensors in checkpoint formats. Does not depend on LibTorch.
#include <cstddef>
#include <string_view>

namespace fsdp {

enum class DType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, u16, u32, u64, f8_e4m3fn, f8_e5m2, c64, c128 };

/// Bytes of one element.
std::size_t dtype_size_bytes(DType dtype);
/// True for f64, f32, f16, bf16 and the two f8 types.
bool is_float(DType dtype);
bool is_complex(DType dtype);
/// Name in safetensors ("F32", "BF16", ...). \throws UsageError for complex types, which the format lacks
std::string_view safetensors_name(DType dtype);
/// \throws FormatError naming an unknown name
DType dtype_from_safetensors(std::string_view name);
/// Name in PyTorch without the module ("float32", "bfloat16", ...).
std::string_view torch_name(DType dtype);
/// \throws FormatError naming an unknown name
DType dtype_from_torch(std::string_view name);

}  // namespace fsdp
