#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/dcp.hpp"
#include "lib/formats/dcp_tiling.hpp"
#include "lib/formats/inside_directory.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {
namespace {

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + ")";
}

template <typename Entry>
const Entry& look_up(const std::map<std::string, Entry>& entries, const std::string& key, const char* what,
                     const std::filesystem::path& directory) {
  const auto found = entries.find(key);
  if (found == entries.end())
    throw UsageError(directory.string() + ": the checkpoint has no " + what + " \"" + key + "\"");
  return found->second;
}

/// The part of `chunk` that lies in the wanted block.
struct Part {
  const DcpTensor::Chunk* chunk;
  Block block;
};

class BlockReader {
 public:
  BlockReader(const std::filesystem::path& directory, const DcpTensor& tensor, Block wanted, std::span<std::byte> out)
      : directory_(directory),
        tensor_(tensor),
        wanted_(std::move(wanted)),
        out_(out),
        element_bytes_(dtype_size_bytes(tensor.dtype)) {}

  void read(const std::string& key) {
    std::vector<Part> parts;
    std::vector<Block> blocks;
    for (const auto& chunk : tensor_.chunks) {
      auto common = intersect({chunk.offsets, chunk.sizes}, wanted_);
      if (!common) continue;
      blocks.push_back(*common);
      parts.push_back({&chunk, std::move(*common)});
    }
    if (const auto problem = detail::tiling_problem(std::move(blocks), num_elements(wanted_.sizes))) {
      throw FormatError((directory_ / ".metadata").string() + ": tensor \"" + key + "\" of shape " +
                        shape_text(tensor_.shape) + ": " + *problem + "; a rank's part may be missing");
    }
    for (const auto& part : parts) read_part(part);
  }

 private:
  void read_part(const Part& part) {
    const auto& chunk = *part.chunk;
    const File file = File::open_read(inside_directory(directory_, chunk.file, directory_ / ".metadata"));
    const TorchBlob blob(file, chunk.offset_bytes, chunk.length_bytes);
    const TensorView view = blob.tensor();
    if (view.dtype != tensor_.dtype || view.sizes != chunk.sizes) {
      throw FormatError(file.path().string(), chunk.offset_bytes,
                        "holds a " + std::string(torch_name(view.dtype)) + " tensor of shape " +
                            shape_text(view.sizes) + ", .metadata says " + std::string(torch_name(tensor_.dtype)) +
                            " of shape " + shape_text(chunk.sizes));
    }
    const auto place = contiguous_place(part.block, wanted_);
    if (place && part.block.sizes == chunk.sizes) {
      blob.read_tensor(view, out_.subspan(*place * element_bytes_, view.length_bytes()));
      return;
    }
    const auto whole = std::make_unique_for_overwrite<std::byte[]>(view.length_bytes());
    const std::span<std::byte> bytes(whole.get(), view.length_bytes());
    blob.read_tensor(view, bytes);
    copy_block(part.block, {chunk.offsets, chunk.sizes}, bytes, wanted_, out_, element_bytes_);
  }

  const std::filesystem::path& directory_;
  const DcpTensor& tensor_;
  Block wanted_;
  std::span<std::byte> out_;
  std::size_t element_bytes_;
};

}  // namespace

DcpReader::DcpReader(const std::filesystem::path& directory)
    : directory_(directory), metadata_(read_dcp_metadata(directory)) {}

std::vector<std::string> DcpReader::value_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata_.values) keys.push_back(key);
  return keys;
}

const StatePath* DcpReader::path(const std::string& key) const {
  if (!metadata_.paths) return nullptr;
  const auto found = metadata_.paths->find(key);
  return found != metadata_.paths->end() ? &found->second : nullptr;
}

nlohmann::json DcpReader::value(const std::string& key) const {
  const DcpValue& place = look_up(metadata_.values, key, "value", directory_);
  const File file = File::open_read(inside_directory(directory_, place.file, directory_ / ".metadata"));
  return TorchBlob(file, place.offset_bytes, place.length_bytes).value();
}

std::string DcpReader::value_archive(const std::string& key) const {
  const DcpValue& place = look_up(metadata_.values, key, "value", directory_);
  const File file = File::open_read(inside_directory(directory_, place.file, directory_ / ".metadata"));
  const auto file_bytes = file.size_bytes();
  if (place.offset_bytes > file_bytes || place.length_bytes > file_bytes - place.offset_bytes) {
    throw FormatError(file.path().string(), place.offset_bytes, "value \"" + key + "\" lies past the end of the file");
  }
  std::string archive(place.length_bytes, '\0');
  file.read_at(place.offset_bytes, std::as_writable_bytes(std::span(archive.data(), archive.size())));
  return archive;
}

void DcpReader::read_block(const std::string& key, const Shape& offsets, const Shape& sizes,
                           std::span<std::byte> out) const {
  const DcpTensor& tensor = look_up(metadata_.tensors, key, "tensor", directory_);
  Block wanted{offsets, sizes};
  if (!block_is_inside(wanted, tensor.shape)) {
    throw UsageError("tensor \"" + key + "\" of shape " + shape_text(tensor.shape) + " has no block " +
                     shape_text(sizes) + " at " + shape_text(offsets));
  }
  if (static_cast<std::uint64_t>(num_elements(sizes)) * dtype_size_bytes(tensor.dtype) != out.size()) {
    throw UsageError("tensor \"" + key + "\": " + std::to_string(out.size()) + " bytes are the wrong room for block " +
                     shape_text(sizes));
  }
  if (out.empty()) return;
  BlockReader(directory_, tensor, std::move(wanted), out).read(key);
}

}  // namespace fsdp
