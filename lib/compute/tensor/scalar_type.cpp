#include "lib/compute/tensor/scalar_type.hpp"

#include <stdexcept>
#include <string>

#include "lib/base/types/error.hpp"

namespace fsdp {

c10::ScalarType to_scalar_type(DType dtype) {
  const auto& types = c10::getStringToDtypeMap();
  const auto found = types.find(std::string(torch_name(dtype)));
  if (found != types.end()) return found->second;
  throw FormatError("element type " + std::string(torch_name(dtype)) + " is not supported by LibTorch");
}

DType to_dtype(c10::ScalarType type) {
  const auto name = c10::getDtypeNames(type).first;
  for (const auto& row : dtype_rows()) {
    if (row.torch == name) return row.dtype;
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
