#pragma once
// A torch.save archive that holds one tensor or one plain python value: the unit of DCP data files.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/base/types/dtype.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/shard_record.hpp"
#include "lib/formats/zip.hpp"

namespace fsdp {

/// A tensor as a pickle describes it: a view of a storage. Strides and offset count elements.
struct TensorView {
  std::string storage_key;  ///< the entry "data/<storage_key>" holds the bytes of the storage
  DType dtype = DType::f32;
  Shape sizes, strides;
  std::uint64_t storage_offset = 0;
  std::uint64_t storage_bytes = 0;           ///< size of the whole storage according to the pickle
  bool conjugated = false, negated = false;  ///< lazy bits: the numbers have yet to be conjugated or negated

  bool is_contiguous() const;
  std::uint64_t length_bytes() const;  ///< size of the tensor itself
};

/// A pickled reference to a storage.
struct StorageReference {
  std::string key;
  std::optional<DType> dtype;  ///< nothing for an untyped storage, whose length counts bytes
  std::uint64_t length_bytes = 0;
};

/// Parses a persistent id. \throws FormatError when `value` is no storage of a supported class
StorageReference storage_reference(const PickleValue& value, const std::string& file);

/// The tensor that `value` would rebuild (torch._utils._rebuild_tensor_v2 or _v3, or torch.nn.Parameter around one), or
/// nothing when `value` is not a tensor. The view is checked to lie inside its storage.
/// \param file  for messages
/// \throws FormatError on a kind of tensor that is not supported
std::optional<TensorView> tensor_view(const PickleValue& value, const std::string& file);

/// Reads the archive in bytes [begin, begin + length) of a file.
class TorchBlob {
 public:
  /// Reads the directory and data.pkl. The file must outlive the object. \throws FormatError
  TorchBlob(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes);
  TorchBlob(std::shared_ptr<const RandomAccess> input, std::uint64_t begin_bytes, std::uint64_t length_bytes);

  const PickleDocument& document() const { return document_; }
  const ZipReader& zip() const { return zip_; }
  /// Moves the document out.
  PickleDocument release_document() { return std::move(document_); }
  /// The entry that holds the storage of the view. \throws FormatError when it is missing or has another size
  const ZipEntry& storage(const TensorView& view) const;

 private:
  std::shared_ptr<const RandomAccess> input_;
  std::uint64_t begin_bytes_;
  ZipReader zip_;
  std::string prefix_;  // prefix of all entry names, with the slash
  PickleDocument document_;
};

}  // namespace fsdp
