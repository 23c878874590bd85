#include "lib/files/read/torch_legacy.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_reader.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {
namespace {

constexpr std::string_view magic_number = "119547037146038801333356";  // 0x1950a86a20f9469cfc6c
constexpr std::int64_t protocol_version = 1001;
constexpr std::uint64_t first_read_bytes = 1u << 20, max_pickle_bytes = 256u << 20;

class TorchLegacy : public TorchFile {
 public:
  explicit TorchLegacy(const std::filesystem::path& path) : TorchFile(path), file_bytes_(file_.size_bytes()) {
    // How long the pickles are is known once they are read: more of the file is taken until they are complete.
    const std::uint64_t most = std::min(max_pickle_bytes, file_bytes_);
    for (std::uint64_t take = std::min(first_read_bytes, most);; take = std::min(take * 8, most)) {
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
      auto document = read_pickle({shared, at, name(), 0});
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
    if (number == nullptr || number->digits != magic_number) fail(*document.root, "is a pickle, but not of torch.save");
  }
  void check_version(const PickleDocument& document) const {
    const auto* number = document.root->integer();
    if (number == nullptr || *number != protocol_version) fail(*document.root, "has an unknown legacy format version");
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

  /// Element sizes are told only by the references to the storages.
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

  /// Returns where the next one starts.
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
    storages_.push_back({number, at + count_bytes, size, std::nullopt, "storage \"" + reference.key + "\""});
    return at + count_bytes + size;
  }

  std::uint64_t file_bytes_, storages_begin_ = 0;
  PickleDocument keys_;
  std::vector<TorchStorage> storages_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
};

}  // namespace

std::unique_ptr<TorchFile> open_torch_legacy(const std::filesystem::path& path) {
  return std::make_unique<TorchLegacy>(path);
}

bool looks_like_torch_legacy(std::string_view first_bytes) {
  if (first_bytes.size() < 4 || first_bytes[0] != '\x80') return false;
  const auto protocol = static_cast<unsigned char>(first_bytes[1]);
  // PROTO, then LONG1 of ten bytes; in protocols with frames a FRAME of eight bytes stands between.
  const std::size_t at = protocol >= 4 && first_bytes[2] == '\x95' ? 11 : 2;
  return protocol >= 2 && protocol <= 5 && first_bytes.substr(std::min(at, first_bytes.size())).starts_with("\x8a\x0a");
}

}  // namespace fsdp
