#pragma once
// The two containers of torch.save: a zip archive, or (before 1.6 and on request) pickles followed by raw storages.
// Source: torch 2.11 torch/serialization.py.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/file.hpp"
#include "lib/files/formats/pickle_value.hpp"
#include "lib/files/formats/torch_blob.hpp"

namespace fsdp {

/// Where a storage lies in the file.
struct TorchStorage {
  std::uint32_t number = 0;  ///< equal for two tensors exactly when they share the storage
  std::uint64_t begin_bytes = 0, size_bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< where recorded
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
  /// The number of the view's storage. \throws FormatError when the file lacks it or has it in another size
  virtual std::uint32_t storage_number(const TensorView& view) const = 0;
  virtual TorchStorage storage(std::uint32_t number) const = 0;

 protected:
  explicit TorchFile(const std::filesystem::path& path) : file_(File::open_read(path)) {}
  File file_;
  std::shared_ptr<const PickleDocument> document_;
};

/// Reads everything but the storages. \throws FormatError, also for what is neither of the two; IoError
std::unique_ptr<TorchFile> open_torch_file(const std::filesystem::path& path);

/// True when the file starts like one of the two.
bool looks_like_torch_file(std::string_view first_bytes);

}  // namespace fsdp
