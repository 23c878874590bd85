#include "lib/files/transform/float_reader.hpp"

#include <span>
#include <utility>

namespace fsdp {

FloatReader::FloatReader(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  for (const auto& tensor : source_->tensors()) {
    if (is_float(tensor.dtype) && !converters_.contains(tensor.dtype))
      converters_.emplace(tensor.dtype, FloatConverter(tensor.dtype, DType::f32));
  }
}

std::vector<float> FloatReader::read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                     std::vector<ReadSum>* sums) const {
  const auto dtype = source_->tensors()[tensor].dtype;
  std::vector<float> values(count);
  const auto out = std::as_writable_bytes(std::span(values));
  if (dtype == DType::f32) {
    source_->read(tensor, first, count, out, sums);
    return values;
  }
  std::vector<std::byte> stored(count * dtype_size_bytes(dtype));
  source_->read(tensor, first, count, stored, sums);
  converters_.at(dtype).convert(stored, out);
  return values;
}

}  // namespace fsdp
