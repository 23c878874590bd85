#pragma once
// Conversions between floating-point element types. NaN stays NaN with its sign, infinities stay infinities when the
// target has them, all other values are rounded once, to nearest, ties to even.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// The value of one element. \param element  exactly the bytes of the element
double float_to_double(const FloatFormat& format, std::span<const std::byte> element);

/// Converts elements of one type to another. A value that is too large for the target becomes infinity, or NaN in
/// f8_e4m3fn, which has no infinity.
class FloatConverter {
 public:
  /// Both types must be floating-point.
  FloatConverter(DType from, DType to);
  /// \param in  a whole number of elements; `out` has the bytes of as many elements
  void convert(std::span<const std::byte> in, std::span<std::byte> out) const;
  /// The same for elements of the tensor number `tensor` of `source`. \throws FormatError naming the tensor and a
  /// finite element that is too large for the target
  void convert(std::span<const std::byte> in, std::span<std::byte> out, const Source& source, std::size_t tensor) const;

 private:
  DType from_, to_;
  std::vector<std::byte> table_;  // results for all values of a source type of one or two bytes
};

/// Reads floating-point tensors as float32. The conversion table of each type is made once.
class FloatReader {
 public:
  explicit FloatReader(std::shared_ptr<const Source> source);

  const Source& source() const { return *source_; }
  /// Reads elements [first, first + count) of a floating-point tensor. \param sums  as for Source::read()
  std::vector<float> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                          std::vector<ReadSum>* sums) const;

 private:
  std::shared_ptr<const Source> source_;
  std::map<DType, FloatConverter> converters_;  ///< by source type
};

}  // namespace fsdp
