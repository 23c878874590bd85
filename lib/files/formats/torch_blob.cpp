#include "lib/files/formats/torch_blob.hpp"

#include <memory>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/files/formats/block.hpp"
#include "lib/files/formats/pickle_reader.hpp"

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

}  // namespace fsdp
