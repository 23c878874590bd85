#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/files/transform/cast_float.hpp"

namespace fsdp {

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
