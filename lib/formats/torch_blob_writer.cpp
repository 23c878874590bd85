// Writes what torch.save writes.
// Source: torch 2.11 torch/serialization.py (_save), torch/_tensor.py (__reduce_ex__).
#include "lib/formats/torch_blob_writer.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {
namespace {

void write_counts(PickleWriter& pickle, const Shape& counts) {
  pickle.mark();
  for (const auto count : counts) pickle.integer(count);
  pickle.tuple();
}

Shape row_major_strides(const Shape& sizes) {
  Shape strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(sizes[dim], 1);  // as PyTorch does for empty tensors
  }
  return strides;
}

}  // namespace

void pickle_tensor(PickleWriter& pickle, DType dtype, const Shape& sizes, std::string_view storage_key) {
  const std::string_view typed_storage = dtype_row(dtype).storage_class;
  const bool untyped = typed_storage.empty();
  const auto count = element_count(sizes);
  pickle.global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.string("storage");
  pickle.global(untyped ? "torch.storage" : "torch", untyped ? "UntypedStorage" : typed_storage);
  pickle.string(storage_key);
  pickle.string("cpu");
  pickle.unsigned_integer(untyped ? count * dtype_size_bytes(dtype) : count);
  pickle.tuple();
  pickle.persistent_id();
  pickle.integer(0);
  write_counts(pickle, sizes);
  write_counts(pickle, row_major_strides(sizes));
  pickle.boolean(false);
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.reduce();
  if (untyped) pickle.global("torch", torch_name(dtype));
  pickle.tuple();
  pickle.reduce();
}

ZipPlan plan_tensor_blob(DType dtype, const Shape& sizes) {
  PickleWriter pickle;
  pickle_tensor(pickle, dtype, sizes, "0");
  ZipPlan plan("archive");
  plan.add("data.pkl", pickle.finish());
  plan.add("byteorder", "little");
  plan.add_data("data/0", element_count(sizes) * dtype_size_bytes(dtype));
  plan.add("version", "3\n");
  plan.finish();
  return plan;
}

ZipPlan plan_value_blob(std::string pickle) {
  ZipPlan plan("archive");
  plan.add("data.pkl", std::move(pickle));
  plan.add("byteorder", "little");
  plan.add("version", "3\n");
  plan.finish();
  return plan;
}

std::uint64_t write_tensor_blob(ByteSink& sink, DType dtype, const Shape& sizes, std::span<const std::byte> data) {
  if (element_count(sizes) * dtype_size_bytes(dtype) != data.size()) {
    throw std::logic_error("write_tensor_blob: data does not have the tensor's length");
  }
  const auto plan = plan_tensor_blob(dtype, sizes);
  sink.write(plan.head());
  const std::array crcs{sink.write(data)};
  for (const auto& piece : plan.tail(crcs)) sink.write(piece.bytes);
  return plan.size_bytes();
}

std::uint64_t write_value_blob(ByteSink& sink, const nlohmann::json& value) {
  PickleWriter pickle;
  pickle.json(value);
  const auto plan = plan_value_blob(pickle.finish());
  sink.write(plan.head());
  return plan.size_bytes();
}

}  // namespace fsdp
