#include <algorithm>
#include <string>

#include "lib/base/error.hpp"
#include "lib/files/formats/zip_format.hpp"
#include "lib/files/read/dcp_source.hpp"
#include "lib/files/read/deepspeed.hpp"
#include "lib/files/read/safetensors_source.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/read/torch_source.hpp"

namespace fsdp {
namespace {

std::unique_ptr<Source> open_directory(const std::filesystem::path& path) {
  if (DcpSource::recognizes(path)) return std::make_unique<DcpSource>(path);
  if (SafetensorsSource::recognizes(path)) return std::make_unique<SafetensorsSource>(path);
  if (is_deepspeed_folder(path))
    throw FormatError(path.string() + ": is a checkpoint of DeepSpeed (ZeRO). " + deepspeed_advice());
  throw FormatError(
      path.string() +
      ": is no checkpoint: it has neither .metadata (DCP; a save may have been cut short), nor "
      "model.safetensors.index.json, model*.safetensors, shard-*.safetensors or adapter_model.safetensors");
}

/// A header length that fits the file, and the header's first byte.
bool looks_like_safetensors(std::string_view first_bytes, std::uint64_t file_bytes) {
  return first_bytes.size() > 8 && first_bytes[8] == '{' &&
         detail::read_le<std::uint64_t>(first_bytes, 0) <= file_bytes - 8;
}

std::unique_ptr<Source> open_file(const std::filesystem::path& path) {
  std::string first(512, '\0');
  std::uint64_t file_bytes = 0;
  {
    const File file = File::open_read(path);
    file_bytes = file.size_bytes();
    first.resize(std::min<std::uint64_t>(first.size(), file_bytes));
    file.read_at(0, std::as_writable_bytes(std::span(first.data(), first.size())));
  }
  if (looks_like_torch_file(first)) return std::make_unique<TorchSource>(path);
  if (looks_like_safetensors(first, file_bytes) || path.extension() == ".safetensors") {
    return std::make_unique<SafetensorsSource>(path);
  }
  if (path.extension() == ".json") return std::make_unique<SafetensorsSource>(path);
  if (path.filename() == ".metadata" || path.filename().string().ends_with(".metadata")) {
    return open_directory(path.parent_path().empty() ? "." : path.parent_path());
  }
  constexpr std::size_t tar_magic_at = 257;
  if (first.size() > tar_magic_at && first.substr(tar_magic_at).starts_with("ustar")) {
    throw FormatError(path.string(), 0, "is a tar file, as PyTorch wrote before 0.2; such files are not supported");
  }
  throw FormatError(path.string(), 0,
                    "is no checkpoint: neither a file of torch.save (zip or legacy) nor safetensors starts like this");
}

}  // namespace

bool holds_checkpoint(const std::filesystem::path& directory) {
  return DcpSource::recognizes(directory) || SafetensorsSource::recognizes(directory);
}

std::unique_ptr<Source> open_source(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw MissingInput(path.string() + ": there is no such file or directory");
  if (std::filesystem::is_directory(status)) return open_directory(path);
  return open_file(path);
}

}  // namespace fsdp
