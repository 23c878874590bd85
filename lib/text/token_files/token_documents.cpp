#include "lib/text/token_files/token_documents.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/text/token_files/hdf5_datasets.hpp"

namespace fsdp {
namespace {

constexpr const char* kTokens = "tokens";
constexpr const char* kOffsets = "offsets";
constexpr const char* kRowOffsets = "row_offsets";
constexpr const char* kExpected =
    "1-dimensional integer datasets 'tokens' [tokens] (uint16 or uint32) and 'offsets' [documents + 1] (int64)";

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& found) {
  throw FormatError(file.string() + ": " + found + ", expected " + kExpected);
}

struct Vector {
  Hdf5Dataset dataset;
  std::uint64_t length;
  detail::IntegerType type;
};

Vector open_vector(const Hdf5File& handle, const std::filesystem::path& file, const char* name) {
  if (!detail::has_dataset(handle, name)) {
    const auto names = detail::member_names(handle);
    refuse(file, "has no dataset '" + std::string(name) + "', only " + (names.empty() ? "an empty root group" : names));
  }
  Vector found{detail::open_dataset(handle, file, name), 0, {}};
  std::string what;
  found.type = detail::integer_type(found.dataset, file, name, what);
  if (found.type.size_bytes == 0) refuse(file, what);
  const auto shape = detail::dataset_shape(found.dataset, file, name);
  if (shape.size() != 1) {
    refuse(file, "dataset '" + std::string(name) + "' has " + std::to_string(shape.size()) + " dimensions");
  }
  found.length = shape[0];
  detail::check_stored(found.dataset, file, name);
  if (!detail::plausible_size(found.dataset, file, found.length, found.type.size_bytes)) {
    throw FormatError(file.string() + ": dataset '" + name + "' claims " + std::to_string(found.length) +
                      " elements, more than the file holds; it is damaged or was not written to its end");
  }
  return found;
}

/// \param end  what the last one is, and what that counts
std::vector<std::int64_t> read_offsets(const Vector& offsets, const char* name, std::uint64_t end, const char* counted,
                                       const std::filesystem::path& file) {
  if (offsets.length == 0) refuse(file, "dataset '" + std::string(name) + "' is empty");
  const hsize_t start = 0, count = offsets.length;
  detail::ChunkSizes(offsets.dataset, file).check(offsets.dataset, file, {&start, 1}, {&count, 1});
  std::vector<std::int64_t> values(offsets.length);
  check_hdf5(H5Dread(offsets.dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), file,
             "read '" + std::string(name) + "'");
  const auto wrong = [&](std::size_t i, const std::string& expected) {
    throw FormatError(file.string() + ": " + name + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                      ", expected " + expected);
  };
  if (values.front() != 0) wrong(0, "0");
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) wrong(i, std::to_string(values[i - 1]) + " or more, the offset before it");
  }
  if (static_cast<std::uint64_t>(values.back()) != end) {
    wrong(values.size() - 1, std::to_string(end) + ", the number of " + counted);
  }
  return values;
}

}  // namespace

TokenDocuments::TokenDocuments(const std::filesystem::path& file) : file_(file) {
  const Hdf5Scope scope;
  handle_ = open_hdf5_read(file);
  auto tokens = open_vector(handle_, file, kTokens);
  const auto offsets = open_vector(handle_, file, kOffsets);
  offsets_ = read_offsets(offsets, kOffsets, tokens.length, "tokens", file);
  if (detail::has_dataset(handle_, kRowOffsets)) {
    const auto rows = open_vector(handle_, file, kRowOffsets);
    row_offsets_ = read_offsets(rows, kRowOffsets, offsets_.size() - 1, "documents", file);
  }
  tokens_ = std::move(tokens.dataset);
  chunks_ = detail::ChunkSizes(tokens_, file);
  fits_int32_ = tokens.type.fits_int32;
  const hsize_t length = tokens.length;
  loss_mask_ = detail::LossMask::find(handle_, file, {&length, 1});
}

void TokenDocuments::check_part(std::int64_t document, std::size_t size) const {
  if (document < 0 || document >= num_documents()) {
    throw std::out_of_range(file_.string() + ": document " + std::to_string(document) + " is not in [0, " +
                            std::to_string(num_documents()) + ")");
  }
  if (static_cast<std::int64_t>(size) > length(document)) {
    throw std::invalid_argument("TokenDocuments: " + std::to_string(size) + " ids of document " +
                                std::to_string(document) + ", which has " + std::to_string(length(document)));
  }
}

void TokenDocuments::read_loss_mask(std::int64_t document, std::span<std::uint8_t> out) const {
  check_part(document, out.size());
  if (out.empty()) return;
  if (!loss_mask_) return std::fill(out.begin(), out.end(), std::uint8_t{1});
  const Hdf5Scope scope;
  const auto start = static_cast<hsize_t>(offsets_[static_cast<std::size_t>(document)]);
  const hsize_t count = out.size();
  loss_mask_->read(file_, {&start, 1}, {&count, 1}, out);
}

void TokenDocuments::read(std::int64_t document, std::span<std::int32_t> out) const {
  check_part(document, out.size());
  if (out.empty()) return;
  const auto what = "read document " + std::to_string(document);
  const auto start = static_cast<hsize_t>(offsets_[static_cast<std::size_t>(document)]);
  const hsize_t count = out.size();
  // Wider types go through 64 bits: HDF5 would clip what does not fit instead of failing.
  std::vector<std::int64_t> wide(fits_int32_ ? 0 : out.size());
  {
    const Hdf5Scope scope;
    chunks_.check(tokens_, file_, {&start, 1}, {&count, 1});
    const Hdf5Space stored(check_hdf5(H5Dget_space(tokens_.get()), file_, what));
    const Hdf5Space memory(check_hdf5(H5Screate_simple(1, &count, nullptr), file_, what));
    check_hdf5(H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr), file_, what);
    void* target = fits_int32_ ? static_cast<void*>(out.data()) : wide.data();
    const hid_t type = fits_int32_ ? H5T_NATIVE_INT32 : H5T_NATIVE_INT64;
    check_hdf5(H5Dread(tokens_.get(), type, memory.get(), stored.get(), H5P_DEFAULT, target), file_, what);
  }
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (wide[i] < 0 || wide[i] > std::numeric_limits<std::int32_t>::max()) {
      throw FormatError(file_.string() + ": document " + std::to_string(document) + ", position " + std::to_string(i) +
                        ": token id " + std::to_string(wide[i]) + " is not in [0, 2147483648)");
    }
    out[i] = static_cast<std::int32_t>(wide[i]);
  }
}

TokenFileKind token_file_kind(const std::filesystem::path& file) {
  const Hdf5Scope scope;
  const auto handle = open_hdf5_read(file);
  if (detail::has_dataset(handle, "input_ids")) return TokenFileKind::rows;
  if (detail::has_dataset(handle, kTokens) && detail::has_dataset(handle, kOffsets)) return TokenFileKind::documents;
  const auto names = detail::member_names(handle);
  throw FormatError(file.string() + ": holds " + (names.empty() ? "nothing" : names) +
                    ", expected a dataset 'input_ids' (packed rows) or 'tokens' and 'offsets' (documents)");
}

bool is_hdf5(const std::filesystem::path& file) {
  constexpr std::array<unsigned char, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  const auto handle = File::open_read(file);
  if (std::filesystem::is_directory(file)) throw IoError(file.string() + ": is a directory");
  if (handle.size_bytes() < kSignature.size()) return false;
  std::array<std::byte, kSignature.size()> start{};
  handle.read_at(0, start);
  return std::equal(start.begin(), start.end(), kSignature.begin(),
                    [](std::byte a, unsigned char b) { return a == std::byte{b}; });
}

}  // namespace fsdp
