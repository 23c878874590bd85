#include "lib/base/types/dtype.hpp"

#include <iterator>
#include <stdexcept>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

using enum NumberKind;

constexpr DTypeRow table[] = {
    {DType::f64, 8, "float64", "DoubleStorage", "F64", 17, real, {11, 52}},
    {DType::f32, 4, "float32", "FloatStorage", "F32", 15, real, {8, 23}},
    {DType::f16, 2, "float16", "HalfStorage", "F16", 11, real, {5, 10}},
    {DType::bf16, 2, "bfloat16", "BFloat16Storage", "BF16", 12, real, {8, 7}},
    {DType::i64, 8, "int64", "LongStorage", "I64", 18, signed_integer},
    {DType::i32, 4, "int32", "IntStorage", "I32", 13, signed_integer},
    {DType::i16, 2, "int16", "ShortStorage", "I16", 9, signed_integer},
    {DType::i8, 1, "int8", "CharStorage", "I8", 5, signed_integer},
    {DType::u8, 1, "uint8", "ByteStorage", "U8", 4, unsigned_integer},
    {DType::boolean, 1, "bool", "BoolStorage", "BOOL", 0, unsigned_integer},
    {DType::u16, 2, "uint16", "", "U16", 10, unsigned_integer},
    {DType::u32, 4, "uint32", "", "U32", 14, unsigned_integer},
    {DType::u64, 8, "uint64", "", "U64", 19, unsigned_integer},
    {DType::f8_e4m3fn, 1, "float8_e4m3fn", "", "F8_E4M3", 7, real, {4, 3, false}},
    {DType::f8_e5m2, 1, "float8_e5m2", "", "F8_E5M2", 6, real, {5, 2}},
    {DType::c64, 8, "complex64", "ComplexFloatStorage", "C64", 16, complex, {8, 23}},
    {DType::c128, 16, "complex128", "ComplexDoubleStorage", "", 0, complex, {11, 52}},
};

std::optional<DType> find(std::string_view name, std::string_view DTypeRow::*column) {
  for (const auto& row : table) {
    if (!name.empty() && row.*column == name) return row.dtype;
  }
  return std::nullopt;
}

DType require(std::string_view name, std::string_view DTypeRow::*column) {
  if (const auto found = find(name, column)) return *found;
  std::string known;
  for (const auto& row : table) {
    if ((row.*column).empty()) continue;
    known += (known.empty() ? "" : ", ") + std::string(row.*column);
  }
  throw FormatError("unknown element type \"" + std::string(name.substr(0, 40)) + "\"; known are " + known);
}

}  // namespace

std::span<const DTypeRow> dtype_rows() { return table; }

const DTypeRow& dtype_row(DType dtype) {
  const auto index = to_index(dtype);
  if (index >= std::size(table) || table[index].dtype != dtype) throw std::logic_error("not a DType");
  return table[index];
}

std::size_t dtype_size_bytes(DType dtype) { return dtype_row(dtype).size_bytes; }
bool is_float(DType dtype) { return dtype_row(dtype).kind == real; }
bool is_complex(DType dtype) { return dtype_row(dtype).kind == complex; }

std::string_view safetensors_name(DType dtype) {
  const auto& row = dtype_row(dtype);
  if (row.kind == complex) {
    throw RequestError("safetensors has no element type for " + std::string(row.torch) +
                       "; write it to a .pt file or a DCP directory instead");
  }
  return row.safetensors;
}

DType dtype_from_safetensors(std::string_view name) { return require(name, &DTypeRow::safetensors); }
std::string_view torch_name(DType dtype) { return dtype_row(dtype).torch; }
DType dtype_from_torch(std::string_view name) { return require(name, &DTypeRow::torch); }
std::optional<DType> dtype_from_storage_class(std::string_view name) { return find(name, &DTypeRow::storage_class); }

}  // namespace fsdp
