// Writes what torch.save writes. Source: torch 2.11 torch/serialization.py (_save).
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lib/files/formats/pickle_writer.hpp"
#include "lib/files/formats/torch_blob.hpp"
#include "lib/files/formats/torch_pickle.hpp"

namespace fsdp {

std::uint64_t write_tensor_blob(ByteSink& sink, DType dtype, const Shape& sizes, std::span<const std::byte> data) {
  if (static_cast<std::uint64_t>(num_elements(sizes)) * dtype_size_bytes(dtype) != data.size()) {
    throw std::logic_error("write_tensor_blob: data does not have the tensor's length");
  }
  PickleWriter pickle;
  pickle_tensor(pickle, dtype, sizes, "0");
  ZipWriter zip(sink, "archive");
  zip.add("data.pkl", pickle.finish());
  zip.add("byteorder", std::string_view("little"));
  zip.add("data/0", data);
  zip.add("version", std::string_view("3\n"));
  return zip.finish();
}

std::uint64_t write_value_blob(ByteSink& sink, const nlohmann::json& value) {
  PickleWriter pickle;
  pickle.json(value);
  ZipWriter zip(sink, "archive");
  zip.add("data.pkl", pickle.finish());
  zip.add("byteorder", std::string_view("little"));
  zip.add("version", std::string_view("3\n"));
  return zip.finish();
}

}  // namespace fsdp
