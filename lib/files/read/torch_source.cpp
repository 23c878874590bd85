#include "lib/files/read/torch_source.hpp"

#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/read/deepspeed_folder.hpp"
#include "lib/files/read/flatten.hpp"
#include "lib/files/read/plain_value.hpp"
#include "lib/files/read/tensor_in_file.hpp"
#include "lib/files/read/torch_file.hpp"

namespace fsdp {

TorchSource::TorchSource(const std::filesystem::path& path, bool may_lack_tensors) : torch_(open_torch_file(path)) {
  info_.format = torch_->format();
  info_.producer = torch_->producer();
  info_.files = {path};
  info_.directory = path.parent_path().empty() ? std::filesystem::path(".") : path.parent_path();
  FlatObject flat = flatten(*torch_->document(), path.string(), may_lack_tensors);
  for (auto& found : flat.tensors) {
    SourceTensor tensor{.name = std::move(found.name),
                        .path = std::move(found.path),
                        .dtype = found.view.dtype,
                        .shape = found.view.sizes};
    tensor.stored_bytes = found.view.storage_bytes;
    storages_.push_back(torch_->storage_number(found.view));
    const Shape shape = tensor.shape;
    add_tensor(std::move(tensor), {{Shape(shape.size(), 0), shape}}, path.string());
    views_.push_back(std::move(found.view));
  }
  for (auto& found : flat.values) {
    values_.push_back({std::move(found.name), std::move(found.path)});
    values_from_.push_back(found.value);
  }
  info_.remarks = deepspeed_remarks(*this);
}

TorchSource::~TorchSource() = default;

LoadedValue TorchSource::value(std::size_t value) const {
  const auto* found = values_from_.at(value);
  check_plain_value(*found, values_[value].name, torch_->file().path().string());
  return {torch_->document(), found};
}

std::optional<std::uint32_t> TorchSource::read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                     std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const TorchStorage storage = torch_->storage(storages_[chunk]);
  TensorInFile stored;
  stored.storage_begin_bytes = storage.begin_bytes;
  stored.view = views_[chunk];
  stored.storage = storage.number;
  stored.crc32 = storage.crc32;
  return read_stored(torch_->file(), stored, first, count, out, sums);
}

std::optional<TorchSource::RecordedSum> TorchSource::recorded_sum(std::uint32_t storage) const {
  const TorchStorage found = torch_->storage(storage);
  if (!found.crc32) return std::nullopt;
  return RecordedSum{.size_bytes = found.size_bytes,
                     .crc32 = *found.crc32,
                     .file = torch_->file().path().string(),
                     .entry = found.entry,
                     .begin_bytes = found.begin_bytes};
}

}  // namespace fsdp
