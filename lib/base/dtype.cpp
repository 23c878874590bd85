#include "lib/base/dtype.hpp"

#include <array>
#include <stdexcept>
#include <string>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

struct Row {
  DType dtype;
  std::size_t size_bytes;
  std::string_view torch, safetensors;  // safetensors: empty if the format lacks the type
};

constexpr std::array<Row, 17> table{{
    {DType::f64, 8, "float64", "F64"},
    {DType::f32, 4, "float32", "F32"},
    {DType::f16, 2, "float16", "F16"},
    {DType::bf16, 2, "bfloat16", "BF16"},
    {DType::i64, 8, "int64", "I64"},
    {DType::i32, 4, "int32", "I32"},
    {DType::i16, 2, "int16", "I16"},
    {DType::i8, 1, "int8", "I8"},
    {DType::u8, 1, "uint8", "U8"},
    {DType::boolean, 1, "bool", "BOOL"},
    {DType::u16, 2, "uint16", "U16"},
    {DType::u32, 4, "uint32", "U32"},
    {DType::u64, 8, "uint64", "U64"},
    {DType::f8_e4m3fn, 1, "float8_e4m3fn", "F8_E4M3"},
    {DType::f8_e5m2, 1, "float8_e5m2", "F8_E5M2"},
    {DType::c64, 8, "complex64", ""},
    {DType::c128, 16, "complex128", ""},
}};

const Row& row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  if (index >= table.size() || table[index].dtype != dtype) throw std::logic_error("not a DType");
  return table[index];
}

DType find(std::string_view name, std::string_view Row::*column) {
  for (const auto& candidate : table) {
    if (!name.empty() && candidate.*column == name) return candidate.dtype;
  }
  std::string known;
  for (const auto& candidate : table) {
    if ((candidate.*column).empty()) continue;
    known += (known.empty() ? "" : ", ") + std::string(candidate.*column);
  }
  throw FormatError("unknown element type \"" + std::string(name.substr(0, 40)) + "\"; known are " + known);
}

}  // namespace

std::size_t dtype_size_bytes(DType dtype) { return row(dtype).size_bytes; }

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         dtype == DType::f8_e4m3fn || dtype == DType::f8_e5m2;
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

std::string_view safetensors_name(DType dtype) {
  const auto& found = row(dtype);
  if (found.safetensors.empty()) {
    throw UsageError("safetensors has no element type for " + std::string(found.torch) +
                     "; write it to a .pt file or a DCP directory instead");
  }
  return found.safetensors;
}

DType dtype_from_safetensors(std::string_view name) { return find(name, &Row::safetensors); }
std::string_view torch_name(DType dtype) { return row(dtype).torch; }
DType dtype_from_torch(std::string_view name) { return find(name, &Row::torch); }

}  // namespace fsdp
