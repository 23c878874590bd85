#pragma once
// Reads the contents of one archive in one piece; DcpSource reads piecewise.
#include <nlohmann/json.hpp>
#include <vector>

#include "lib/formats/block.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp::test {

inline nlohmann::json value_of(const TorchBlob& blob) { return pickle_to_json(*blob.document().root, "blob"); }

inline std::optional<TensorView> view_of(const TorchBlob& blob) { return tensor_view(*blob.document().root, "blob"); }

inline std::vector<std::byte> elements_of(const TorchBlob& blob, const TensorView& view) {
  std::vector<std::byte> out(view.length_bytes()), storage(view.storage_bytes);
  blob.zip().read(blob.storage(view), storage);
  const auto element_bytes = dtype_size_bytes(view.dtype);
  copy_strided(view.sizes, view.strides, std::span(storage).subspan(view.storage_offset * element_bytes), out,
               element_bytes);
  return out;
}

}  // namespace fsdp::test
