#pragma once
// Conversions between floating-point element types. NaN stays NaN with its sign, infinities stay where the target has
// them, everything else is rounded once, to nearest, ties to even.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/dtype.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

/// The value of one element. \param element  exactly its bytes
double float_to_double(DType dtype, std::span<const std::byte> element);

/// Converts one type to another. Too large for the target becomes infinity, or NaN in f8_e4m3fn, which has none.
class FloatConverter {
 public:
  /// Both types must be floating-point.
  FloatConverter(DType from, DType to);
  /// \param in  a whole number of elements; `out` has the bytes of as many
  void convert(std::span<const std::byte> in, std::span<std::byte> out) const;

 private:
  DType from_, to_;
  std::vector<std::byte> table_;  // targets of all values of a source of one or two bytes
};

/// Reads floating-point tensors as float32. The tables of conversions are made once for each type.
class FloatReader {
 public:
  explicit FloatReader(std::shared_ptr<const Source> source);

  const Source& source() const { return *source_; }
  /// Elements [first, first + count) of a floating-point tensor. \param sums  as Source::read() has it
  std::vector<float> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                          std::vector<ReadSum>* sums) const;

 private:
  std::shared_ptr<const Source> source_;
  std::map<DType, FloatConverter> converters_;  ///< by the type converted from
};

}  // namespace fsdp
