// Source: torch 2.11 torch/serialization.py.
#include "lib/formats/torch_file.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kMagicNumber = "119547037146038801333356";  // 0x1950a86a20f9469cfc6c
constexpr std::int64_t kProtocolVersion = 1001;
constexpr std::uint64_t kFirstReadBytes = 1u << 20, kMaxPickleBytes = 256u << 20;

class TorchLegacy : public TorchFile {
 public:
  explicit TorchLegacy(const std::filesystem::path& path) : TorchFile(path), file_bytes_(file_.size_bytes()) {
    // The length of the pickles is known only after they are read: a growing part of the file is read until they are
    // complete.
    const std::uint64_t most = std::min(kMaxPickleBytes, file_bytes_);
    for (std::uint64_t take = std::min(kFirstReadBytes, most);; take = std::min(take * 8, most)) {
      try {
        read_pickles(take);
        break;
      } catch (const PickleEndsEarly&) {
        if (take == most) throw;
      }
    }
    place_storages();
  }

  std::string format() const override { return "torch legacy"; }
  std::string producer() const override { return "PyTorch (legacy format)"; }
  std::uint32_t storage_number(const TensorView& view) const override {
    const auto found = numbers_.find(view.storage_key);
    if (found == numbers_.end() || storages_[found->second].size_bytes != view.storage_bytes) {
      throw FormatError(name(), storages_begin_,
                        "storage \"" + view.storage_key.substr(0, 100) + "\" of " + std::to_string(view.storage_bytes) +
                            " bytes is " + (found == numbers_.end() ? "missing" : "there in another size"));
    }
    return found->second;
  }
  TorchStorage storage(std::uint32_t number) const override { return storages_.at(number); }

 private:
  std::string name() const { return file_.path().string(); }

  void read_pickles(std::uint64_t take_bytes) {
    std::string text(take_bytes, '\0');
    file_.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
    const auto shared = std::make_shared<const std::string>(std::move(text));
    std::uint64_t at = 0;
    const auto next = [&] {
      auto document = read_pickle({.text = shared, .begin_bytes = at, .file = name()});
      at += document.length_bytes;
      return document;
    };
    check_magic(next());
    check_version(next());
    check_machine(next());
    document_ = std::make_shared<const PickleDocument>(next());
    keys_ = next();
    storages_begin_ = at;
  }

  [[noreturn]] void fail(const PickleValue& at, const std::string& what) const {
    throw FormatError(name(), at.offset_bytes, what);
  }
  void check_magic(const PickleDocument& document) const {
    const auto* number = document.root->big_integer();
    if (number == nullptr || number->digits != kMagicNumber) fail(*document.root, "is a pickle, but not of torch.save");
  }
  void check_version(const PickleDocument& document) const {
    const auto* number = document.root->integer();
    if (number == nullptr || *number != kProtocolVersion) fail(*document.root, "has an unknown legacy format version");
  }
  void check_machine(const PickleDocument& document) const {
    if (document.root->dict() == nullptr) fail(*document.root, "does not say which machine wrote it");
    for (const auto& [key, value] : document.root->dict()->items) {
      if (key->string() == nullptr || key->string()->text != "little_endian") continue;
      if (value->boolean() != nullptr && *value->boolean()) return;
      fail(*value, "was written on a big-endian machine, which is not supported");
    }
    fail(*document.root, "does not say whether a little-endian machine wrote it");
  }

  /// Collects the references to storages: only these tell the element sizes.
  std::map<std::string, StorageReference, std::less<>> references() const {
    std::map<std::string, StorageReference, std::less<>> found;
    for (const auto& value : document_->values) {
      if (value.persistent() == nullptr) continue;
      auto reference = storage_reference(value, name());
      const auto [place, is_new] = found.emplace(reference.key, reference);
      if (!is_new && (place->second.dtype != reference.dtype || place->second.length_bytes != reference.length_bytes)) {
        fail(value, "a storage is said to have two types or sizes");
      }
    }
    return found;
  }

  void place_storages() {
    const auto known = references();
    if (keys_.root->list() == nullptr)
      fail(*keys_.root, "a list of storages was expected, found " + describe(*keys_.root));
    std::uint64_t at = storages_begin_;
    for (const auto key : keys_.root->list()->items) {
      if (key->string() == nullptr) fail(*key, "the name of a storage was expected, found " + describe(*key));
      const auto reference = known.find(key->string()->text);
      if (reference == known.end()) fail(*key, "a storage that nothing uses has no known size");
      at = place_storage(reference->second, at);
    }
    keys_ = {};
    if (at != file_bytes_) {
      throw FormatError(name(), at, std::to_string(file_bytes_ - at) + " bytes follow the last storage");
    }
  }

  /// Returns the offset of the next storage.
  std::uint64_t place_storage(const StorageReference& reference, std::uint64_t at) {
    constexpr std::uint64_t count_bytes = 8;
    const std::uint64_t size = reference.length_bytes;
    if (file_bytes_ - at < count_bytes || size > file_bytes_ - at - count_bytes) {
      throw FormatError(name(), at,
                        "storage \"" + reference.key.substr(0, 100) + "\" of " + std::to_string(size) +
                            " bytes should lie here, but the file has " + std::to_string(file_bytes_) +
                            " bytes; it was cut short");
    }
    std::string text(count_bytes, '\0');
    file_.read_at(at, std::as_writable_bytes(std::span(text.data(), text.size())));
    const std::uint64_t element_bytes = reference.dtype ? dtype_size_bytes(*reference.dtype) : 1;
    if (detail::read_le<std::uint64_t>(text, 0) != size / element_bytes) {
      throw FormatError(name(), at,
                        "storage \"" + reference.key.substr(0, 100) + "\" should have " +
                            std::to_string(size / element_bytes) + " elements, another number stands here");
    }
    const auto number = static_cast<std::uint32_t>(storages_.size());
    if (!numbers_.emplace(reference.key, number).second) throw FormatError(name(), at, "a storage occurs twice");
    storages_.push_back({.number = number,
                         .begin_bytes = at + count_bytes,
                         .size_bytes = size,
                         .crc32 = std::nullopt,
                         .entry = "storage \"" + reference.key + "\""});
    return at + count_bytes + size;
  }

  std::uint64_t file_bytes_, storages_begin_ = 0;
  PickleDocument keys_;
  std::vector<TorchStorage> storages_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
};

/// Opens a file of torch.save(..., _use_new_zipfile_serialization=False): pickles of a magic number, a protocol
/// version, the machine, the object and the sorted storage keys, then every storage as an int64 element count and its
/// elements.
/// \throws FormatError, IoError
std::unique_ptr<TorchFile> open_torch_legacy(const std::filesystem::path& path) {
  return std::make_unique<TorchLegacy>(path);
}

/// True when the file starts with a pickled integer.
bool looks_like_torch_legacy(std::string_view first_bytes) {
  if (first_bytes.size() < 4 || first_bytes[0] != '\x80') return false;
  const auto protocol = static_cast<unsigned char>(first_bytes[1]);
  // PROTO, then LONG1 of ten bytes; protocols with frames have a FRAME of eight bytes between them.
  const std::size_t at = protocol >= 4 && first_bytes[2] == '\x95' ? 11 : 2;
  return protocol >= 2 && protocol <= 5 && first_bytes.substr(std::min(at, first_bytes.size())).starts_with("\x8a\x0a");
}

class TorchZip : public TorchFile {
 public:
  explicit TorchZip(const std::filesystem::path& path) : TorchFile(path), blob_(file_, 0, file_.size_bytes()) {
    has_format_version_ = has("/.format_version");
    has_byteorder_ = has("/byteorder");
    document_ = std::make_shared<const PickleDocument>(blob_.release_document());
  }

  std::string format() const override { return "torch zip"; }
  std::string producer() const override {
    if (has_format_version_) return "PyTorch, later than 2.4";
    return has_byteorder_ ? "PyTorch 2.1 or later" : "PyTorch 1.6 to 2.0";
  }
  std::uint32_t storage_number(const TensorView& view) const override {
    return static_cast<std::uint32_t>(&blob_.storage(view) - blob_.zip().entries().data());
  }
  TorchStorage storage(std::uint32_t number) const override {
    const ZipEntry& entry = blob_.zip().entries().at(number);
    const auto crc = entry.crc32 != 0 ? std::optional(entry.crc32) : std::nullopt;
    return {.number = number,
            .begin_bytes = blob_.zip().data_offset(entry),
            .size_bytes = entry.size_bytes,
            .crc32 = crc,
            .entry = "entry \"" + entry.name + "\""};
  }

 private:
  bool has(std::string_view suffix) const {
    for (const auto& entry : blob_.zip().entries()) {
      if (std::string_view(entry.name).ends_with(suffix)) return true;
    }
    return false;
  }

  TorchBlob blob_;
  bool has_format_version_ = false, has_byteorder_ = false;
};

constexpr std::string_view kZipMagic = "PK\3\4";

}  // namespace

bool looks_like_torch_file(std::string_view first_bytes) {
  return first_bytes.starts_with(kZipMagic) || looks_like_torch_legacy(first_bytes);
}

std::unique_ptr<TorchFile> open_torch_file(const std::filesystem::path& path) {
  std::string magic(16, '\0');
  {
    const File file = File::open_read(path);
    magic.resize(std::min<std::uint64_t>(magic.size(), file.size_bytes()));
    file.read_at(0, std::as_writable_bytes(std::span(magic.data(), magic.size())));
  }
  if (magic.starts_with(kZipMagic)) return std::make_unique<TorchZip>(path);
  if (looks_like_torch_legacy(magic)) return open_torch_legacy(path);
  throw FormatError(path.string(), 0,
                    "is no file of torch.save: neither its zip nor its legacy format starts like this");
}

}  // namespace fsdp
