// A DCP directory as a source; see lib/checkpoints/programs/dcp/dcp.hpp for the format.
#include "lib/checkpoints/programs/dcp/dcp_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/dcp/zstd_item.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_json.hpp"
#include "lib/checkpoints/source/chunked_source.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/inside_directory.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxValueBytes = 1ull << 30;  // limit for one decompressed python value

/// The RANK of `__<RANK>_<n>.distcp`, or -1 for another name.
int rank_of_data_file(const std::string& name) {
  int rank = -1;
  if (!name.starts_with("__") || !name.ends_with(".distcp")) return -1;
  const auto [stop, error] = std::from_chars(name.data() + 2, name.data() + name.size(), rank);
  return error == std::errc() && *stop == '_' && rank >= 0 ? rank : -1;
}

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + ")";
}

class DcpSource : public ChunkedSource {
 public:
  /// Reads the metadata only and checks that all chunks and data files are there. \throws FormatError, IoError
  explicit DcpSource(const std::filesystem::path& directory);

  LoadedValue value(std::size_t value) const override;
  std::shared_ptr<TorchBlob> open_value(std::size_t value) const;

 protected:
  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool chunk_prefers_whole(ChunkNumber chunk) const override;
  std::optional<RecordedSum> recorded_sum(std::uint32_t storage) const override;

 private:
  struct Item {
    std::uint32_t file = 0;
    std::uint64_t offset_bytes = 0, length_bytes = 0;
    bool zstd = false;
    std::uint32_t tensor = 0;  // chunks only
  };
  /// The location of the tensor of an item in its data file.
  struct Found {
    TensorInFile stored;
    std::string entry;  // for messages
  };

  void add_items(DcpMetadata& metadata);
  std::uint32_t file_number(const std::string& name);
  void check_files() const;
  void count_ranks();
  void read_run();
  void check_view(const TensorView& view, ChunkNumber chunk, const std::string& where) const;
  const Found& find(ChunkNumber chunk) const;
  std::unique_ptr<const Found> look_up(ChunkNumber chunk) const;
  std::unique_ptr<const Found> look_up_safetensors(const Item& item, ChunkNumber chunk) const;
  [[noreturn]] void fail(const Item& item, const std::string& what) const;

  std::filesystem::path index_;  // for messages
  FileSet files_;
  std::map<std::string, std::uint32_t> file_numbers_;
  std::vector<Item> chunks_, value_items_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const Found>> found_;  // by chunk; null until it is looked up
  mutable std::map<std::uint32_t, std::shared_ptr<const SafetensorsReader>> headers_;  // of files that are safetensors
};

DcpSource::DcpSource(const std::filesystem::path& directory) : index_(directory / ".metadata") {
  info_.directory = directory;
  std::error_code ignored;
  if (!std::filesystem::exists(index_, ignored)) index_ = directory;
  auto metadata = read_dcp_metadata(directory);
  info_.producer = metadata.producer;
  if (!metadata.unknown.empty())
    info_.remarks.push_back(fmt::format(
        "{}: has fields that this version does not know, which are passed over (a newer PyTorch wrote them): {}",
        index_.string(), fmt::join(metadata.unknown, ", ")));
  add_items(metadata);
  check_names(index_.string());
  check_files();
  found_.resize(chunks_.size());
  count_ranks();
  read_run();
  info_.format = is_local_state(*this) ? "FSDP1 local state" : "DCP";
}

void DcpSource::fail(const Item& item, const std::string& what) const {
  throw FormatError(files_.paths()[item.file].string(), item.offset_bytes, what);
}

std::uint32_t DcpSource::file_number(const std::string& name) {
  const auto [place, is_new] = file_numbers_.emplace(name, 0);
  if (is_new) place->second = files_.add(inside_directory(info_.directory, name, index_));
  return place->second;
}

void DcpSource::add_items(DcpMetadata& metadata) {
  const auto path_of = [&](const std::string& key) {
    if (metadata.paths) {
      if (const auto found = metadata.paths->find(key); found != metadata.paths->end()) return found->second;
    }
    return StatePath{key};
  };
  for (const auto& key : metadata.keys) {
    if (const auto value = metadata.values.find(key); value != metadata.values.end()) {
      const DcpValue& item = value->second;
      values_.push_back({key, path_of(key)});
      value_items_.push_back({.file = file_number(item.file),
                              .offset_bytes = item.offset_bytes,
                              .length_bytes = item.length_bytes,
                              .zstd = item.zstd});
      continue;
    }
    DcpTensor& stored = metadata.tensors.at(key);
    SourceTensor tensor{.name = key,
                        .path = path_of(key),
                        .dtype = stored.dtype,
                        .shape = std::move(stored.shape),
                        .num_shards = std::ssize(stored.chunks)};
    std::vector<Block> blocks;
    for (auto& chunk : stored.chunks) {
      tensor.stored_bytes +=
          chunk.zstd ? chunk.length_bytes : element_count(chunk.sizes) * dtype_size_bytes(stored.dtype);
      chunks_.push_back({.file = file_number(chunk.file),
                         .offset_bytes = chunk.offset_bytes,
                         .length_bytes = chunk.length_bytes,
                         .zstd = chunk.zstd,
                         .tensor = static_cast<std::uint32_t>(tensors_.size())});
      blocks.push_back({std::move(chunk.offsets), std::move(chunk.sizes)});
    }
    add_tensor(std::move(tensor), std::move(blocks), index_.string());
  }
  info_.files = files_.paths();
  std::sort(info_.files.begin(), info_.files.end());
}

void DcpSource::check_files() const {
  std::vector<std::uint64_t> sizes;
  for (const auto& path : files_.paths()) {
    std::error_code error;
    sizes.push_back(std::filesystem::file_size(path, error));
    if (error) throw FormatError(path.string() + ": is missing, but " + index_.string() + " names it");
  }
  const auto check = [&](const Item& item) {
    const std::uint64_t size = sizes[item.file];
    if (item.offset_bytes <= size && item.length_bytes <= size - item.offset_bytes) return;
    fail(item, "an item of " + std::to_string(item.length_bytes) + " bytes should lie here, but the file has " +
                   std::to_string(size) + " bytes; it was cut short, or belongs to another checkpoint");
  };
  for (const auto& item : chunks_) check(item);
  for (const auto& item : value_items_) check(item);
}

void DcpSource::count_ranks() {
  int last = -1;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(info_.directory, error), end; !error && entry != end;
       entry.increment(error)) {
    last = std::max(last, rank_of_data_file(entry->path().filename().string()));
  }
  info_.world_size = last + 1;
}

void DcpSource::read_run() {
  const auto path = info_.directory / "run.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  const auto text = read_text_file(path, kMostRunJsonBytes);
  const auto run = parse_json_or_discard(text, path.string());
  if (!run.is_object() || run.value("format", nlohmann::json()) != "fsdp-run") return;  // run.json of another program
  info_.producer = "fsdp-finetune";
  if (run.contains("world_size") && run["world_size"].is_number_integer()) {
    info_.world_size = run["world_size"].get<int>();
  }
  if (run.contains("model")) info_.model_config = json_text(run["model"]);
  const nlohmann::json::json_pointer adapter("/data/adapter");
  if (run.contains(adapter) && run[adapter].is_object()) info_.adapter = json_text(run[adapter]);
}

void DcpSource::check_view(const TensorView& view, ChunkNumber chunk, const std::string& where) const {
  const SourceTensor& tensor = tensors_[chunks_[chunk].tensor];
  const Shape& sizes = block(chunk).sizes;
  if (view.dtype == tensor.dtype && view.sizes == sizes) return;
  throw FormatError(where + " holds a " + std::string(torch_name(view.dtype)) + " tensor of shape " +
                    shape_text(view.sizes) + ", the metadata says " + std::string(torch_name(tensor.dtype)) +
                    " of shape " + shape_text(sizes) + " for a chunk of \"" + tensor.name + "\"");
}

const DcpSource::Found& DcpSource::find(ChunkNumber chunk) const {
  {
    const std::lock_guard lock(mutex_);
    if (found_[chunk] != nullptr) return *found_[chunk];
  }
  auto found = look_up(chunk);
  const std::lock_guard lock(mutex_);
  if (found_[chunk] == nullptr) found_[chunk] = std::move(found);
  return *found_[chunk];
}

std::unique_ptr<const DcpSource::Found> DcpSource::look_up(ChunkNumber chunk) const {
  const Item& item = chunks_[chunk];
  const auto file = files_.open(item.file);
  std::array<char, 4> magic{};
  file->read_at(item.offset_bytes, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic.data(), 2) != "PK" && item.offset_bytes == 0) return look_up_safetensors(item, chunk);
  const TorchBlob blob(*file, item.offset_bytes, item.length_bytes);
  auto found = std::make_unique<Found>();
  auto view = tensor_view(*blob.document().root, file->path().string());
  if (!view) fail(item, "a tensor was expected in this archive, found " + describe(*blob.document().root));
  const std::string where = file->path().string() + ": at byte " + std::to_string(item.offset_bytes) + ": the archive";
  check_view(*view, chunk, where);
  const ZipEntry& entry = blob.storage(*view);
  found->stored.storage_begin_bytes = blob.zip().data_offset(entry);
  found->stored.storage = chunk;
  if (entry.crc32 != 0) found->stored.crc32 = entry.crc32;
  found->stored.view = std::move(*view);
  found->entry = "entry \"" + entry.name + "\" of tensor \"" + tensors_[item.tensor].name + "\"";
  return found;
}

/// With serialization_format=SAFETENSORS the whole data file is one safetensors file, which holds the chunks of its
/// rank by name.
std::unique_ptr<const DcpSource::Found> DcpSource::look_up_safetensors(const Item& item, ChunkNumber chunk) const {
  std::shared_ptr<const SafetensorsReader> header;
  {
    const std::lock_guard lock(mutex_);
    auto& known = headers_[item.file];
    if (known == nullptr) known = std::make_shared<const SafetensorsReader>(files_.paths()[item.file]);
    header = known;
  }
  const std::string& name = tensors_[item.tensor].name;
  const auto entry = header->tensors().find(name);
  if (entry == header->tensors().end()) fail(item, "the safetensors file has no tensor \"" + name + "\"");
  auto found = std::make_unique<Found>();
  found->stored.view = contiguous_view(entry->second.dtype, entry->second.shape);
  check_view(found->stored.view, chunk, header->path().string() + ": tensor \"" + name + "\"");
  found->stored.storage_begin_bytes = entry->second.begin;
  found->stored.storage = chunk;
  return found;
}

std::optional<std::uint32_t> DcpSource::read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                   std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const Item& item = chunks_[chunk];
  const auto file = files_.open(item.file);
  if (!item.zstd) return read_stored(*file, find(chunk).stored, first, count, out, sums);
  const auto check = [&](const TensorView& view) {
    const std::string where =
        file->path().string() + ": at byte " + std::to_string(item.offset_bytes) + ": the archive";
    check_view(view, chunk, where);
    if (view.storage_bytes > view.length_bytes()) fail(item, "the compressed storage is larger than its tensor");
  };
  read_zstd_tensor({*file, item.offset_bytes, item.length_bytes}, check, first, count, out);
  return std::nullopt;
}

bool DcpSource::chunk_prefers_whole(ChunkNumber chunk) const {
  return chunks_[chunk].zstd || !find(chunk).stored.view.is_contiguous();
}

std::optional<DcpSource::RecordedSum> DcpSource::recorded_sum(std::uint32_t storage) const {
  if (storage >= chunks_.size() || chunks_[storage].zstd) return std::nullopt;
  const Found& found = find(storage);
  if (!found.stored.crc32) return std::nullopt;
  return RecordedSum{.size_bytes = found.stored.view.storage_bytes,
                     .crc32 = *found.stored.crc32,
                     .file = files_.paths()[chunks_[storage].file].string(),
                     .entry = found.entry,
                     .begin_bytes = found.stored.storage_begin_bytes};
}

std::shared_ptr<TorchBlob> DcpSource::open_value(std::size_t value) const {
  const Item& item = value_items_.at(value);
  const auto file = files_.open(item.file);
  if (item.zstd) {
    auto archive = read_zstd_archive({*file, item.offset_bytes, item.length_bytes}, kMaxValueBytes);
    const auto length = archive.size();
    const auto name = file->path().string() + ": in the zstd item at byte " + std::to_string(item.offset_bytes);
    return std::make_shared<TorchBlob>(std::make_shared<MemoryAccess>(name, std::move(archive)), 0, length);
  }
  struct Held {
    std::shared_ptr<const File> file;
    FileAccess access;
  };
  const auto held = std::make_shared<const Held>(Held{.file = file, .access = FileAccess(*file)});
  return std::make_shared<TorchBlob>(std::shared_ptr<const RandomAccess>(held, &held->access), item.offset_bytes,
                                     item.length_bytes);
}

LoadedValue DcpSource::value(std::size_t value) const {
  const auto document = std::make_shared<const PickleDocument>(open_value(value)->release_document());
  check_plain_value(*document->root, values_[value].name, files_.paths()[value_items_[value].file].string());
  return {document, document->root};
}

}  // namespace

bool is_dcp_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  return std::filesystem::exists(directory / ".metadata", ignored) ||
         std::filesystem::exists(directory / "__0.metadata", ignored);
}

std::unique_ptr<Source> open_dcp(const std::filesystem::path& directory) {
  return std::make_unique<DcpSource>(directory);
}

std::shared_ptr<TorchBlob> open_dcp_value(const Source& dcp, std::size_t value) {
  return dynamic_cast<const DcpSource&>(dcp).open_value(value);
}

}  // namespace fsdp
