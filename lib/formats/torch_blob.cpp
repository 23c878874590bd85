#include "lib/formats/torch_blob.hpp"

#include <memory>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/pickle_reader.hpp"

namespace fsdp {

TorchBlob::TorchBlob(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : TorchBlob(std::make_shared<FileAccess>(file), begin_bytes, length_bytes) {}

TorchBlob::TorchBlob(std::shared_ptr<const RandomAccess> input, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : input_(std::move(input)), begin_bytes_(begin_bytes), zip_(input_, begin_bytes, length_bytes) {
  const ZipEntry& pickle = zip_.find_suffix("/data.pkl");
  prefix_ = pickle.name.substr(0, pickle.name.size() - std::string_view("data.pkl").size());
  if (const auto* order = zip_.find(prefix_ + "byteorder")) {
    if (zip_.read_text(*order, 16) != "little") {
      throw FormatError(input_->name(), order->header_bytes,
                        "was written on a big-endian machine, which is not supported");
    }
  }
  document_ = read_pickle(
      {std::make_shared<const std::string>(zip_.read_text(pickle)), 0, input_->name(), zip_.data_offset(pickle)});
}

TensorView TorchBlob::tensor() const {
  auto view = tensor_view(*document_.root, input_->name());
  if (!view) {
    throw FormatError(input_->name(), begin_bytes_,
                      "a tensor was expected in this archive, found " + describe(*document_.root));
  }
  if (view->conjugated || view->negated) {
    throw FormatError(input_->name(), begin_bytes_,
                      std::string("a pickled tensor carries a lazy ") +
                          (view->conjugated ? "conjugation" : "negation") +
                          ", which is not supported here: save tensor.resolve_conj().resolve_neg() instead");
  }
  return *view;
}

const ZipEntry& TorchBlob::storage(const TensorView& view) const {
  const ZipEntry* storage = zip_.find(prefix_ + "data/" + view.storage_key);
  if (storage == nullptr || storage->size_bytes != view.storage_bytes) {
    throw FormatError(input_->name(), storage != nullptr ? storage->header_bytes : begin_bytes_,
                      "the tensor needs entry \"data/" + view.storage_key.substr(0, 100) + "\" of " +
                          std::to_string(view.storage_bytes) + " bytes, but it is " +
                          (storage != nullptr ? std::to_string(storage->size_bytes) + " bytes" : "absent"));
  }
  return *storage;
}

void TorchBlob::read_tensor(const TensorView& view, std::span<std::byte> out) const {
  if (out.size() != view.length_bytes()) throw std::logic_error("TorchBlob::read_tensor: wrong output size");
  const ZipEntry& storage = this->storage(view);
  if (out.empty()) return;
  if (out.size() == view.storage_bytes && view.is_contiguous()) {
    zip_.read(storage, out);
    return;
  }
  const auto whole = std::make_unique_for_overwrite<std::byte[]>(storage.size_bytes);
  const std::span<std::byte> bytes(whole.get(), storage.size_bytes);
  zip_.read(storage, bytes);
  const std::size_t element_bytes = dtype_size_bytes(view.dtype);
  copy_strided(view.sizes, view.strides, bytes.subspan(view.storage_offset * element_bytes), out, element_bytes);
}

nlohmann::json TorchBlob::value() const { return pickle_to_json(*document_.root, input_->name()); }

}  // namespace fsdp
