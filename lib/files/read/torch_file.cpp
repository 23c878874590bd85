#include "lib/files/read/torch_file.hpp"

#include <string_view>

#include "lib/base/error.hpp"
#include "lib/files/read/torch_legacy.hpp"

namespace fsdp {
namespace {

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
    return {number, blob_.zip().data_offset(entry), entry.size_bytes, crc, "entry \"" + entry.name + "\""};
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

constexpr std::string_view zip_magic = "PK\3\4";

}  // namespace

bool looks_like_torch_file(std::string_view first_bytes) {
  return first_bytes.starts_with(zip_magic) || looks_like_torch_legacy(first_bytes);
}

std::unique_ptr<TorchFile> open_torch_file(const std::filesystem::path& path) {
  std::string magic(16, '\0');
  {
    const File file = File::open_read(path);
    magic.resize(std::min<std::uint64_t>(magic.size(), file.size_bytes()));
    file.read_at(0, std::as_writable_bytes(std::span(magic.data(), magic.size())));
  }
  if (magic.starts_with(zip_magic)) return std::make_unique<TorchZip>(path);
  if (looks_like_torch_legacy(magic)) return open_torch_legacy(path);
  throw FormatError(path.string(), 0,
                    "is no file of torch.save: neither its zip nor its legacy format starts like this");
}

}  // namespace fsdp
