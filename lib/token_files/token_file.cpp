#include "lib/token_files/token_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {

// The readers.
std::unique_ptr<TokenFile> open_hdf5_tokens(const std::filesystem::path& file);

namespace {

struct TokenFileFormat {
  std::string_view what;                     ///< for messages
  std::array<std::string_view, 2> suffixes;  ///< of file names; empty: none
  std::string_view signature;                ///< the first bytes of a file; empty: only the name tells
  std::unique_ptr<TokenFile> (*open)(const std::filesystem::path&);
};

/// The first format also opens what has no known name or signature, and says what is wrong with it.
constexpr TokenFileFormat kFormats[] = {{.what = "an HDF5 file",
                                         .suffixes = {".h5", ".hdf5"},
                                         .signature = {"\x89HDF\r\n\x1a\n", 8},
                                         .open = open_hdf5_tokens}};

std::string first_bytes_of(const std::filesystem::path& file) {
  std::size_t most = 0;
  for (const auto& format : kFormats) most = std::max(most, format.signature.size());
  const auto handle = File::open_read(file);
  std::string bytes(std::min<std::uint64_t>(most, handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

const TokenFileFormat* format_by_content(std::string_view first_bytes) {
  for (const auto& format : kFormats) {
    if (!format.signature.empty() && first_bytes.starts_with(format.signature)) return &format;
  }
  return nullptr;
}

const TokenFileFormat* format_by_name(const std::filesystem::path& file) {
  const auto suffix = file.extension().string();
  for (const auto& format : kFormats) {
    if (!suffix.empty() && std::ranges::find(format.suffixes, suffix) != format.suffixes.end()) return &format;
  }
  return nullptr;
}

}  // namespace

TokenFile::TokenFile(std::filesystem::path file) : file_(std::move(file)), opened_(version()) {}

TokenFile::Version TokenFile::version() const {
  struct stat found {};
  if (::stat(file_.c_str(), &found) != 0) return {};
  return {.size_bytes = found.st_size, .seconds = found.st_mtim.tv_sec};
}

void TokenFile::check_unchanged() const {
  // Shared file systems settle the time of a file that another host has just written.
  constexpr std::int64_t kSettlingSeconds = 2;
  const auto now = version();
  if (now.size_bytes < 0 || opened_.size_bytes < 0) return;
  const bool same_size = now.size_bytes == opened_.size_bytes;
  if (same_size && std::abs(now.seconds - opened_.seconds) <= kSettlingSeconds) return;
  const auto what =
      same_size ? std::string("it was written again")
                : "it had " + std::to_string(opened_.size_bytes) + " bytes and has " + std::to_string(now.size_bytes);
  throw FormatError(file_.string() + ": has changed since this program opened it: " + what +
                    "; a file that is read must stay as it is, so write the new one under another name");
}

void TokenFile::check_part(std::int64_t record, std::size_t size) const {
  if (record < 0 || record >= num_records())
    throw std::out_of_range(file_.string() + ": record " + std::to_string(record) + " is not in [0, " +
                            std::to_string(num_records()) + ")");
  if (static_cast<std::int64_t>(size) > length(record))
    throw std::invalid_argument(file_.string() + ": " + std::to_string(size) + " ids of record " +
                                std::to_string(record) + ", which has " + std::to_string(length(record)));
}

void TokenFile::read_rows(std::span<const std::int64_t> rows, std::span<std::int32_t> out) const {
  const auto length = static_cast<std::size_t>(row_length());
  for (std::size_t i = 0; i < rows.size(); ++i) read(rows[i], out.subspan(i * length, length));
}

void TokenFile::read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const {
  check_part(record, out.size());
  std::ranges::fill(out, std::uint8_t{1});
}

std::unique_ptr<TokenFile> open_token_file(const std::filesystem::path& file) {
  std::error_code error;
  const auto* format = format_by_name(file);
  if (format == nullptr && std::filesystem::is_regular_file(file, error))
    format = format_by_content(first_bytes_of(file));
  return (format != nullptr ? *format : kFormats[0]).open(file);
}

bool is_token_file(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) &&
         (format_by_name(file) != nullptr || format_by_content(first_bytes_of(file)) != nullptr);
}

std::string_view token_format_of(std::string_view first_bytes) {
  const auto* format = format_by_content(first_bytes);
  return format == nullptr ? std::string_view() : format->what;
}

void check_token_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, const std::filesystem::path& file,
                     std::span<const std::int64_t> records) {
  if (records.empty() || ids.size() % records.size() != 0) {
    if (ids.empty()) return;
    throw std::invalid_argument("check_token_ids: " + std::to_string(ids.size()) + " ids are not " +
                                std::to_string(records.size()) + " records");
  }
  const std::size_t length = ids.size() / records.size();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw FormatError(file.string() + ": row " + std::to_string(records[i / length]) + ", position " +
                      std::to_string(i % length) + ": token id " + std::to_string(ids[i]) +
                      " is outside the model's vocabulary of " + std::to_string(vocab_size) +
                      "; was the file made with another tokenizer?");
  }
}

}  // namespace fsdp
