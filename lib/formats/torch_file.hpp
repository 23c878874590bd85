#pragma once
// Files of torch.save: their object as a pickle, and the places of their storages.
// Source: torch 2.11 torch/serialization.py.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

/// The location of a storage in the file.
struct TorchStorage {
  std::uint32_t number = 0;  ///< two tensors have one number exactly when they share the storage
  std::uint64_t begin_bytes = 0, size_bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< when recorded
  std::string entry;                   ///< for messages
};

/// Const member functions may be called from several threads.
class TorchFile {
 public:
  virtual ~TorchFile() = default;
  const File& file() const { return file_; }
  const std::shared_ptr<const PickleDocument>& document() const { return document_; }
  virtual std::string format() const = 0;
  virtual std::string producer() const = 0;
  /// The number of the storage of the view. \throws FormatError when the file lacks the storage or has it in another
  /// size
  virtual std::uint32_t storage_number(const TensorView& view) const = 0;
  virtual TorchStorage storage(std::uint32_t number) const = 0;

 protected:
  explicit TorchFile(const std::filesystem::path& path) : file_(File::open_read(path)) {}
  File file_;
  std::shared_ptr<const PickleDocument> document_;
};

/// True when the file starts like a zip archive or like the legacy format of torch.save.
bool looks_like_torch_file(std::string_view first_bytes);

/// Reads everything but the storages. \throws FormatError, also for a file of neither format; IoError
std::unique_ptr<TorchFile> open_torch_file(const std::filesystem::path& path);

}  // namespace fsdp
