#include "lib/compute/tensor/scalar_type.hpp"

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::array<std::pair<DType, c10::ScalarType>, 17> kTypes{{
    {DType::f64, c10::ScalarType::Double},
    {DType::f32, c10::ScalarType::Float},
    {DType::f16, c10::ScalarType::Half},
    {DType::bf16, c10::ScalarType::BFloat16},
    {DType::i64, c10::ScalarType::Long},
    {DType::i32, c10::ScalarType::Int},
    {DType::i16, c10::ScalarType::Short},
    {DType::i8, c10::ScalarType::Char},
    {DType::u8, c10::ScalarType::Byte},
    {DType::boolean, c10::ScalarType::Bool},
    {DType::u16, c10::ScalarType::UInt16},
    {DType::u32, c10::ScalarType::UInt32},
    {DType::u64, c10::ScalarType::UInt64},
    {DType::f8_e4m3fn, c10::ScalarType::Float8_e4m3fn},
    {DType::f8_e5m2, c10::ScalarType::Float8_e5m2},
    {DType::c64, c10::ScalarType::ComplexFloat},
    {DType::c128, c10::ScalarType::ComplexDouble},
}};

}  // namespace

c10::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw FormatError("element type " + std::string(torch_name(dtype)) + " is not supported by LibTorch");
}

DType to_dtype(c10::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw std::logic_error(std::string("no checkpoint element type for ") + c10::toString(type));
}

kernels::Type kernel_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return kernels::Type::f32;
    case c10::ScalarType::BFloat16:
      return kernels::Type::bf16;
    case c10::ScalarType::Half:
      return kernels::Type::f16;
    default:
      throw std::logic_error(std::string("no CPU kernel for ") + c10::toString(type));
  }
}

}  // namespace fsdp
