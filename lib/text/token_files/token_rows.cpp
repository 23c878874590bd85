#include "lib/text/token_files/token_rows.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/shared_write.hpp"
#include "lib/text/token_files/hdf5_datasets.hpp"

namespace fsdp {
namespace {

constexpr const char* kDataset = "input_ids";
constexpr const char* kExpected = "a 2-dimensional integer dataset 'input_ids' [rows, ids per row] (uint16 or uint32)";

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& found) {
  throw FormatError(file.string() + ": " + found + ", expected " + kExpected);
}

Hdf5Dataset open_input_ids(const Hdf5File& handle, const std::filesystem::path& file) {
  if (!detail::has_dataset(handle, kDataset)) {
    const auto names = detail::member_names(handle);
    refuse(file, "has no dataset 'input_ids', only " + (names.empty() ? "an empty root group" : names));
  }
  return detail::open_dataset(handle, file, kDataset);
}

/// \return true when every value of the stored type is an id in [0, 2^31)
bool check_element_type(const Hdf5Dataset& dataset, const std::filesystem::path& file) {
  std::string found;
  const auto type = detail::integer_type(dataset, file, kDataset, found);
  if (type.size_bytes == 0) refuse(file, found);
  return type.fits_int32;
}

std::array<std::int64_t, 2> read_shape(const Hdf5Dataset& dataset, const std::filesystem::path& file) {
  const auto shape = detail::dataset_shape(dataset, file, kDataset);
  if (shape.size() != 2) refuse(file, "dataset 'input_ids' has " + std::to_string(shape.size()) + " dimensions");
  const auto text = "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + "]";
  if (shape[0] == 0) refuse(file, "dataset 'input_ids' of shape " + text + " has no rows");
  if (shape[1] < 2) {
    throw FormatError(file.string() + ": dataset 'input_ids' of shape " + text +
                      " has rows too short to predict a next id, expected 2 ids per row or more");
  }
  if (shape[0] > (hsize_t{1} << 62) / shape[1]) refuse(file, "dataset 'input_ids' claims the impossible shape " + text);
  return {static_cast<std::int64_t>(shape[0]), static_cast<std::int64_t>(shape[1])};
}

void check_shape(std::size_t num_ids, std::int64_t row_length) {
  if (row_length < 2) {
    throw UsageError("rows of " + std::to_string(row_length) + " token ids: a row needs 2 or more");
  }
  if (num_ids == 0 || num_ids % static_cast<std::size_t>(row_length) != 0) {
    throw UsageError(std::to_string(num_ids) + " token ids do not fill one or more rows of " +
                     std::to_string(row_length));
  }
}

/// The element type, in memory and in the file.
struct ElementType {
  hid_t memory;
  hid_t file;
};

void write_complete(const std::filesystem::path& file, const void* ids, std::array<hsize_t, 2> shape,
                    ElementType type) {
  const Hdf5Scope scope;
  const auto access = unlocked_file_access(file);
  Hdf5File handle(check_hdf5(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), file, "create"));
  const Hdf5Space space(check_hdf5(H5Screate_simple(2, shape.data(), nullptr), file, "create the shape"));
  Hdf5Dataset dataset(
      check_hdf5(H5Dcreate2(handle.get(), kDataset, type.file, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                 file, "create dataset 'input_ids'"));
  check_hdf5(H5Dwrite(dataset.get(), type.memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids), file, "write 'input_ids'");
  check_hdf5(dataset.close(), file, "complete 'input_ids'");
  check_hdf5(handle.close(), file, "complete the file");
}

void write_rows(const std::filesystem::path& file, const void* ids, std::array<hsize_t, 2> shape, ElementType type) {
  const auto temporary = file.parent_path() / ("." + file.filename().string() + "." + process_tag() + ".tmp");
  try {
    write_complete(temporary, ids, shape, type);
    File::open_read(temporary).sync();
    std::filesystem::rename(temporary, file);
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw IoError(file.string() + ": token file not written: " + error.what());
  }
}

}  // namespace

TokenRows::TokenRows(const std::filesystem::path& file) : file_(file) {
  const Hdf5Scope scope;
  handle_ = open_hdf5_read(file);
  dataset_ = open_input_ids(handle_, file);
  fits_int32_ = check_element_type(dataset_, file);
  const auto shape = read_shape(dataset_, file);
  detail::check_stored(dataset_, file, kDataset);
  chunks_ = detail::ChunkSizes(dataset_, file);
  num_rows_ = shape[0];
  row_length_ = shape[1];
  const std::array<hsize_t, 2> extent{static_cast<hsize_t>(num_rows_), static_cast<hsize_t>(row_length_)};
  loss_mask_ = detail::LossMask::find(handle_, file, extent);
}

void TokenRows::read_loss_mask(std::int64_t row, std::span<std::uint8_t> out) const {
  if (row < 0 || row >= num_rows_ || static_cast<std::int64_t>(out.size()) != row_length_)
    throw std::invalid_argument("read_loss_mask: row " + std::to_string(row) + " into " + std::to_string(out.size()));
  if (!loss_mask_) return std::fill(out.begin(), out.end(), std::uint8_t{1});
  const Hdf5Scope scope;
  const std::array<hsize_t, 2> start{static_cast<hsize_t>(row), 0}, count{1, static_cast<hsize_t>(row_length_)};
  loss_mask_->read(file_, start, count, out);
}

void TokenRows::read_row(std::int64_t row, std::span<std::int32_t> out) const { read_rows({&row, 1}, out); }

void TokenRows::read_rows(std::span<const std::int64_t> rows, std::span<std::int32_t> out) const {
  const auto length = static_cast<std::size_t>(row_length_);
  if (out.size() != rows.size() * length) {
    throw std::invalid_argument("read_rows: " + std::to_string(rows.size()) + " rows of " + std::to_string(length) +
                                " ids do not fill a buffer of " + std::to_string(out.size()));
  }
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t end = first + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    read_range(rows[first], static_cast<std::int64_t>(end - first),
               out.subspan(first * length, (end - first) * length));
    first = end;
  }
}

void TokenRows::read_range(std::int64_t first_row, std::int64_t count, std::span<std::int32_t> out) const {
  if (first_row < 0 || first_row > num_rows_ - count) {
    throw std::out_of_range(file_.string() + ": rows " + std::to_string(first_row) + " to " +
                            std::to_string(first_row + count - 1) + " are not in [0, " + std::to_string(num_rows_) +
                            ")");
  }
  const auto what = "read row " + std::to_string(first_row) + " of 'input_ids'";
  const std::array<hsize_t, 2> start{static_cast<hsize_t>(first_row), 0};
  const std::array<hsize_t, 2> block{static_cast<hsize_t>(count), static_cast<hsize_t>(row_length_)};
  // Wider types go through 64 bits: HDF5 would clip what does not fit instead of failing.
  std::vector<std::int64_t> wide(fits_int32_ ? 0 : out.size());
  {
    const Hdf5Scope scope;
    chunks_.check(dataset_, file_, start, block);
    const Hdf5Space stored(check_hdf5(H5Dget_space(dataset_.get()), file_, what));
    const Hdf5Space memory(check_hdf5(H5Screate_simple(2, block.data(), nullptr), file_, what));
    check_hdf5(H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, start.data(), nullptr, block.data(), nullptr), file_,
               what);
    void* target = fits_int32_ ? static_cast<void*>(out.data()) : wide.data();
    const hid_t type = fits_int32_ ? H5T_NATIVE_INT32 : H5T_NATIVE_INT64;
    check_hdf5(H5Dread(dataset_.get(), type, memory.get(), stored.get(), H5P_DEFAULT, target), file_, what);
  }
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (wide[i] < 0 || wide[i] > std::numeric_limits<std::int32_t>::max()) {
      throw FormatError(file_.string() + ": row " +
                        std::to_string(first_row + static_cast<std::int64_t>(i) / row_length_) + ", position " +
                        std::to_string(static_cast<std::int64_t>(i) % row_length_) + ": token id " +
                        std::to_string(wide[i]) + " is not in [0, 2147483648)");
    }
    out[i] = static_cast<std::int32_t>(wide[i]);
  }
}

void write_token_rows(const std::filesystem::path& file, std::span<const std::uint16_t> ids, std::int64_t row_length) {
  check_shape(ids.size(), row_length);
  const Hdf5Scope scope;  // naming a type initialises the library
  const auto length = static_cast<hsize_t>(row_length);
  write_rows(file, ids.data(), {ids.size() / length, length}, {H5T_NATIVE_UINT16, H5T_STD_U16LE});
}

void write_token_rows(const std::filesystem::path& file, std::span<const std::uint32_t> ids, std::int64_t row_length) {
  check_shape(ids.size(), row_length);
  const Hdf5Scope scope;
  const auto length = static_cast<hsize_t>(row_length);
  write_rows(file, ids.data(), {ids.size() / length, length}, {H5T_NATIVE_UINT32, H5T_STD_U32LE});
}

void check_token_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, const std::filesystem::path& file,
                     std::span<const std::int64_t> rows) {
  if (rows.empty() || ids.size() % rows.size() != 0) {
    if (ids.empty()) return;
    throw std::invalid_argument("check_token_ids: " + std::to_string(ids.size()) + " ids are not " +
                                std::to_string(rows.size()) + " rows");
  }
  const std::size_t length = ids.size() / rows.size();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw FormatError(file.string() + ": row " + std::to_string(rows[i / length]) + ", position " +
                      std::to_string(i % length) + ": token id " + std::to_string(ids[i]) +
                      " is outside the model's vocabulary of " + std::to_string(vocab_size) +
                      "; was the file made with another tokenizer?");
  }
}

}  // namespace fsdp
