#include "lib/training/state/load/row_reader.hpp"

#include <ATen/ops/empty.h>

#include <span>

#include "lib/compute/tensor/scalar_type.hpp"

namespace fsdp::detail {
namespace {

std::span<std::byte> bytes_of(at::Tensor& values) {
  return {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())};
}

}  // namespace

at::Tensor RowReader::rows(const TensorOffset& place, Shape shape, std::int64_t first_row, std::int64_t num_rows) {
  const auto row_elements = num_elements(shape) / shape.front();
  shape.front() = num_rows;
  auto values = at::empty(shape, to_scalar_type(source_.tensors()[place.tensor].dtype));
  source_.read(place.tensor, place.first + static_cast<std::uint64_t>(first_row * row_elements),
               static_cast<std::uint64_t>(values.numel()), bytes_of(values), &sums_);
  return values;
}

at::Tensor RowReader::elements(std::size_t tensor, std::int64_t first, std::int64_t count) {
  auto values = at::empty({count}, to_scalar_type(source_.tensors()[tensor].dtype));
  source_.read(tensor, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(count), bytes_of(values), &sums_);
  return values;
}

at::Tensor RowReader::bytes(std::size_t tensor, std::int64_t first, std::int64_t count) {
  const auto item = static_cast<std::int64_t>(dtype_size_bytes(source_.tensors()[tensor].dtype));
  auto values = at::empty({count}, at::kByte);
  source_.read(tensor, static_cast<std::uint64_t>(first / item), static_cast<std::uint64_t>(count / item),
               bytes_of(values), &sums_);
  return values;
}

}  // namespace fsdp::detail
