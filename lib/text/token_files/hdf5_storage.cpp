#include "lib/text/token_files/hdf5_storage.hpp"

#include <algorithm>
#include <limits>

#include "lib/base/error.hpp"
#include "lib/text/token_files/hdf5_datasets.hpp"

namespace fsdp::detail {
namespace {

constexpr const char* kLayout = "read the layout of a dataset";
// Deflate, the strongest of the usual filters, compresses by a factor of 1032 at most.
constexpr std::uint64_t kMostGain = 2000;
// Chunks up to this are believed: other filters gain more where all ids are the same.
constexpr std::uint64_t kHarmlessChunk_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargest = (std::uint64_t{1} << 63) - 1;

std::string dataset_of(const std::filesystem::path& file, const std::string& name) {
  return file.string() + ": dataset '" + name + "' ";
}

/// Both arguments fit; what does not fit any more is said to be the largest number.
std::uint64_t multiplied(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

std::uint64_t file_bytes(const std::filesystem::path& file) {
  std::error_code error;
  const std::uint64_t bytes = std::filesystem::file_size(file, error);
  return error ? 0 : bytes;
}

constexpr const char* kLinkMark = "is a link into another file, '";

/// Called for an external link before its file is opened. The message, as the error of the call that met the link.
extern "C" herr_t refuse_external_link(const char*, const char*, const char* target, const char*, unsigned*, hid_t,
                                       void*) {
  H5Epush2(H5E_DEFAULT, "", "", 0, H5E_ERR_CLS, H5E_LINK, H5E_TRAVERSE, "%s%s'", kLinkMark, target);
  return -1;
}

Hdf5Properties creation_properties(const Hdf5Dataset& dataset, const std::filesystem::path& file) {
  return Hdf5Properties(check_hdf5(H5Dget_create_plist(dataset.get()), file, kLayout));
}

void refuse_external_storage(const Hdf5Properties& layout, const std::filesystem::path& file, const std::string& name) {
  if (check_hdf5(H5Pget_external_count(layout.get()), file, kLayout) == 0) return;
  std::string target(4096, '\0');
  off_t offset = 0;
  hsize_t bytes = 0;
  check_hdf5(H5Pget_external(layout.get(), 0, target.size() - 1, target.data(), &offset, &bytes), file, kLayout);
  target.resize(target.find('\0'));
  throw FormatError(dataset_of(file, name) + "keeps its values outside, in '" + target +
                    "'; expected them in the file itself: write it anew with create_dataset(..., data=ids)");
}

void check_chunks_stored(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name) {
  const ChunkSizes chunks(dataset, file);
  const auto expected = chunks.count(dataset_shape(dataset, file, name));
  std::uint64_t stored = 0;
#if H5_VERSION_GE(1, 10, 5)
  const auto what = "count the chunks of '" + name + "'";
  const Hdf5Space all(check_hdf5(H5Dget_space(dataset.get()), file, what));
  hsize_t counted = 0;
  check_hdf5(H5Dget_num_chunks(dataset.get(), all.get(), &counted), file, what);
  stored = counted;
#else
  const std::uint64_t bytes = H5Dget_storage_size(dataset.get());
  stored = chunks.filtered() ? (bytes > 0 ? expected : 0) : bytes / std::max<std::uint64_t>(1, chunks.stored_bytes());
#endif
  if (stored >= expected) return;
  throw FormatError(dataset_of(file, name) + "is not written to its end: of " + std::to_string(expected) +
                    " chunks only " + std::to_string(stored) + " are stored, the others would be read as zeros");
}

}  // namespace

Hdf5Dataset open_dataset(const Hdf5File& handle, const std::filesystem::path& file, const std::string& name) {
  const auto what = "open dataset '" + name + "'";
  const Hdf5Properties access(check_hdf5(H5Pcreate(H5P_DATASET_ACCESS), file, what));
  check_hdf5(H5Pset_elink_cb(access.get(), refuse_external_link, nullptr), file, what);
  Hdf5Dataset dataset(H5Dopen2(handle.get(), name.c_str(), access.get()));
  if (dataset.get() < 0) {
    const auto stack = hdf5_error_stack();
    const auto mark = stack.find(kLinkMark);
    if (mark == std::string::npos) throw FormatError(file.string() + ": cannot " + what + ": " + stack);
    throw FormatError(dataset_of(file, name) + stack.substr(mark) +
                      "; expected it in the file itself: name that file, or copy the dataset (h5copy)");
  }
  const auto layout = creation_properties(dataset, file);
  refuse_external_storage(layout, file, name);
  refuse_growing_virtual(layout, file, name);
  return dataset;
}

void check_stored(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name) {
  check_stored_below(dataset, file, name, 0);
}

void check_stored_below(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name,
                        int depth) {
  const Hdf5Space space(check_hdf5(H5Dget_space(dataset.get()), file, "read the shape of '" + name + "'"));
  const auto count = check_hdf5(H5Sget_simple_extent_npoints(space.get()), file, "read the shape of '" + name + "'");
  if (count == 0) return;
  const auto layout = H5Pget_layout(creation_properties(dataset, file).get());
  if (layout == H5D_VIRTUAL) return check_virtual_sources(dataset, file, name, depth);
  if (layout == H5D_CHUNKED) return check_chunks_stored(dataset, file, name);
  if (layout != H5D_CONTIGUOUS) return;  // within the header
  H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
  check_hdf5(H5Dget_space_status(dataset.get(), &status), file, "ask how much of '" + name + "' is stored");
  if (status != H5D_SPACE_STATUS_ALLOCATED) {
    throw FormatError(dataset_of(file, name) + "was created but never written: it would be read as zeros");
  }
  const Hdf5Type type(check_hdf5(H5Dget_type(dataset.get()), file, "read the type of '" + name + "'"));
  if (!plausible_size(dataset, file, static_cast<std::uint64_t>(count), H5Tget_size(type.get()))) {
    throw FormatError(dataset_of(file, name) + "claims " + std::to_string(count) +
                      " elements, more than the file holds; it is damaged or was not written to its end");
  }
}

bool plausible_size(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::uint64_t count,
                    std::size_t element_bytes) {
  const auto layout = creation_properties(dataset, file);
  if (H5Pget_layout(layout.get()) == H5D_VIRTUAL) return true;
  const std::uint64_t gain = H5Pget_nfilters(layout.get()) > 0 ? kMostGain : 1;
  const std::uint64_t stored_bytes = std::min<std::uint64_t>(H5Dget_storage_size(dataset.get()), file_bytes(file));
  return count <= stored_bytes * gain / element_bytes;
}

ChunkSizes::ChunkSizes(const Hdf5Dataset& dataset, const std::filesystem::path& file) {
  const auto layout = creation_properties(dataset, file);
  if (H5Pget_layout(layout.get()) != H5D_CHUNKED) return;
  const auto rank = check_hdf5(H5Pget_chunk(layout.get(), 0, nullptr), file, kLayout);
  shape_.resize(static_cast<std::size_t>(rank));
  check_hdf5(H5Pget_chunk(layout.get(), static_cast<int>(rank), shape_.data()), file, kLayout);
  const Hdf5Type type(check_hdf5(H5Dget_type(dataset.get()), file, kLayout));
  std::uint64_t bytes = H5Tget_size(type.get());
  for (const auto length : shape_) bytes = multiplied(bytes, length);
  filtered_ = H5Pget_nfilters(layout.get()) != 0;
  const auto in_file = file_bytes(file);
  if (bytes == 0 || (bytes > kHarmlessChunk_bytes && bytes > multiplied(in_file, filtered_ ? kMostGain : 1))) {
    throw FormatError(file.string() + ": claims chunks of " + std::to_string(bytes) + " bytes, which a file of " +
                      std::to_string(in_file) + " bytes cannot hold; it is damaged");
  }
  // A filter that gains nothing adds a little.
  stored_bytes_ = (filtered_ ? std::min(in_file, multiplied(bytes, 2) | 0xffff) : bytes) & kLargest;
}

std::uint64_t ChunkSizes::count(std::span<const hsize_t> shape) const {
  if (shape_.size() != shape.size() || shape_.empty()) return 0;
  std::uint64_t chunks = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    chunks = multiplied(chunks, shape[d] / shape_[d] + (shape[d] % shape_[d] != 0 ? 1 : 0));
  }
  return chunks;
}

void ChunkSizes::check(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::span<const hsize_t> start,
                       std::span<const hsize_t> count) const {
#if H5_VERSION_GE(1, 10, 5)
  if (shape_.empty()) return;
  const auto rank = shape_.size();
  std::vector<hsize_t> first(rank);
  for (std::size_t d = 0; d < rank; ++d) first[d] = start[d] / shape_[d] * shape_[d];
  auto at = first;
  while (true) {
    unsigned filters = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    check_hdf5(H5Dget_chunk_info_by_coord(dataset.get(), at.data(), &filters, &address, &size), file,
               "look up a chunk of a dataset");
    if (address == HADDR_UNDEF) {
      throw FormatError(file.string() + ": a chunk that is to be read is not stored; the file is damaged");
    }
    if (filtered_ ? size > stored_bytes_ : size != stored_bytes_) {
      throw FormatError(file.string() + ": a chunk of " + std::to_string(size) + " bytes where " +
                        (filtered_ ? "the most are " : "all have ") + std::to_string(stored_bytes_) +
                        "; the file is damaged");
    }
    // To the next chunk, the last dimension first.
    std::size_t d = rank;
    while (d > 0 && (at[d - 1] += shape_[d - 1]) >= start[d - 1] + count[d - 1]) {
      at[d - 1] = first[d - 1];
      --d;
    }
    if (d == 0) return;
  }
#endif
}

}  // namespace fsdp::detail
