// Token files of nanoGPT (its data/*/prepare.py): nothing but uint16 ids, little-endian, one stream without documents.
// Read as rows of 1024 ids, nanoGPT's block_size; ids after the last whole row are left out.
#include <array>
#include <bit>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/text/token_files/token_file.hpp"

namespace fsdp {

std::unique_ptr<TokenFile> open_raw_tokens(const std::filesystem::path& file);

namespace {

static_assert(std::endian::native == std::endian::little);

class RawTokenFile final : public TokenFile {
 public:
  explicit RawTokenFile(const std::filesystem::path& path)
      : TokenFile(path), bytes_(File::open_read(path)), rows_(static_cast<std::int64_t>(bytes_.size_bytes()) / kBytes) {
    if (rows_ == 0)
      throw FormatError(path.string() + ": has " + std::to_string(bytes_.size_bytes()) +
                        " bytes, expected a row of 1024 ids of 2 bytes or more");
  }

  std::int64_t num_records() const override { return rows_; }
  std::int64_t row_length() const override { return kLength; }
  std::int64_t length(std::int64_t) const override { return kLength; }
  void read(std::int64_t row, std::span<std::int32_t> out) const override {
    check_part(row, out.size());
    std::array<std::uint16_t, kLength> ids{};
    const auto wanted = std::span(ids).first(out.size());
    bytes_.read_at(static_cast<std::uint64_t>(row * kBytes), std::as_writable_bytes(wanted));
    std::copy(wanted.begin(), wanted.end(), out.begin());
  }

 private:
  static constexpr std::int64_t kLength = 1024, kBytes = kLength * 2;
  File bytes_;
  std::int64_t rows_;
};

}  // namespace

std::unique_ptr<TokenFile> open_raw_tokens(const std::filesystem::path& file) {
  return std::make_unique<RawTokenFile>(file);
}

}  // namespace fsdp
