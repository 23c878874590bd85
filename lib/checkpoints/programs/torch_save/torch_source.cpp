#include "lib/checkpoints/programs/torch_save/torch_source.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"
#include "lib/checkpoints/programs/hf/model_files.hpp"
#include "lib/checkpoints/programs/torch_save/nested_dict.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/torch_file.hpp"

namespace fsdp {
namespace {

constexpr const char* kWholeTorch = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";

std::vector<std::filesystem::path> shards_in(const std::filesystem::path& directory) {
  return files_called(directory, "pytorch_model-", ".bin");
}

}  // namespace

bool is_torch_directory(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::exists(directory / kTorchIndex, error) ||
         std::filesystem::exists(directory / kWholeTorch, error) || !shards_in(directory).empty();
}

TorchSource::TorchSource() = default;
TorchSource::~TorchSource() = default;

TorchSource::TorchSource(const std::filesystem::path& path, bool may_lack_tensors) {
  info_.directory = path.parent_path().empty() ? std::filesystem::path(".") : path.parent_path();
  add_file(path, may_lack_tensors);
  info_.remarks = deepspeed_remarks(*this);
}

std::unique_ptr<TorchSource> TorchSource::of_model(const std::filesystem::path& path) {
  std::unique_ptr<TorchSource> source(new TorchSource);
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(path, error);
  source->info_.directory = is_directory ? path : path.parent_path();
  if (!is_directory) {
    source->add_indexed(path, "");
  } else if (std::filesystem::exists(path / kTorchIndex, error)) {
    source->add_indexed(path / kTorchIndex, kWholeTorch);
  } else if (std::filesystem::exists(path / kWholeTorch, error)) {
    source->add_file(path / kWholeTorch, false);
  } else {
    const auto shards = shards_in(path);
    refuse_missing_shards(shards);
    for (const auto& file : shards) source->add_file(file, false);
  }
  source->check_names(path.string());
  return source;
}

void TorchSource::add_indexed(const std::filesystem::path& index, const std::string& whole) {
  const auto indexed = read_index(index, whole);
  for (const auto& [name, file] : indexed.files) add_file(file, false, &indexed.file_of, name);
  std::set<std::string_view> names;
  for (const auto& tensor : tensors_) names.insert(tensor.name);
  for (const auto& [tensor, file] : indexed.file_of) {
    if (!names.contains(tensor))
      throw FormatError(index.string() + ": tensor \"" + tensor + "\" should be in " + file + " but is not");
  }
}

void TorchSource::add_file(const std::filesystem::path& path, bool may_lack_tensors,
                           const std::map<std::string, std::string>* file_of, const std::string& indexed_as) {
  const auto first_storage = num_storages_;
  const auto& torch = *files_.emplace(first_storage, open_torch_file(path)).first->second;
  info_.format = torch.format();
  info_.producer = torch.producer();
  info_.files.push_back(path);
  FlatObject flat = flatten(*torch.document(), path.string(), may_lack_tensors);
  std::vector<std::string> unindexed;
  for (auto& found : flat.tensors) {
    if (file_of != nullptr && !is_indexed(found.name, *file_of, path, indexed_as)) {
      unindexed.push_back(found.name);
      continue;
    }
    SourceTensor tensor{.name = std::move(found.name),
                        .path = std::move(found.path),
                        .dtype = found.view.dtype,
                        .shape = found.view.sizes};
    tensor.stored_bytes = found.view.storage_bytes;
    storages_.push_back(first_storage + torch.storage_number(found.view));
    num_storages_ = std::max(num_storages_, storages_.back() + 1);
    const Shape shape = tensor.shape;
    add_tensor(std::move(tensor), {{Shape(shape.size(), 0), shape}}, path.string());
    views_.push_back(std::move(found.view));
  }
  if (!unindexed.empty()) info_.remarks.push_back(remark_of_unindexed(path, unindexed));
  num_storages_ = std::max(num_storages_, first_storage + 1);  // of a file without tensors, too
  for (auto& found : flat.values) {
    values_.push_back({std::move(found.name), std::move(found.path)});
    values_from_.push_back({torch.document(), found.value});
  }
}

LoadedValue TorchSource::value(std::size_t value) const {
  const auto& found = values_from_.at(value);
  check_plain_value(*found.value, values_[value].name, info_.named_file().string());
  return found;
}

TorchStorage TorchSource::stored(std::uint32_t storage) const {
  const auto file = std::prev(files_.upper_bound(storage));
  auto found = file->second->storage(storage - file->first);
  found.number = storage;
  return found;
}

std::optional<std::uint32_t> TorchSource::read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                     std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const TorchStorage storage = stored(storages_[chunk]);
  TensorInFile in_file;
  in_file.storage_begin_bytes = storage.begin_bytes;
  in_file.view = views_[chunk];
  in_file.storage = storage.number;
  in_file.crc32 = storage.crc32;
  return read_stored(file_of(storage.number).file(), in_file, first, count, out, sums);
}

std::optional<TorchSource::RecordedSum> TorchSource::recorded_sum(std::uint32_t storage) const {
  const TorchStorage found = stored(storage);
  if (!found.crc32) return std::nullopt;
  return RecordedSum{.size_bytes = found.size_bytes,
                     .crc32 = *found.crc32,
                     .file = file_of(storage).file().path().string(),
                     .entry = found.entry,
                     .begin_bytes = found.begin_bytes};
}

}  // namespace fsdp
