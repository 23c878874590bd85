#include "lib/dataset/hdf5_datasets.hpp"

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp::detail {
namespace {

herr_t append_name(hid_t, const char* name, const H5L_info_t*, void* names) {
  auto& joined = *static_cast<std::string*>(names);
  joined += (joined.empty() ? "'" : ", '") + std::string(name) + "'";
  return joined.size() > 200 ? 1 : 0;  // enough to recognise the file by
}

}  // namespace

bool has_dataset(const Hdf5File& handle, const char* name) { return H5Lexists(handle.get(), name, H5P_DEFAULT) > 0; }

std::string member_names(const Hdf5File& handle) {
  std::string names;
  H5Literate(handle.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, append_name, &names);
  return names;
}

Hdf5Dataset open_dataset(const Hdf5File& handle, const std::filesystem::path& file, const std::string& name) {
  return Hdf5Dataset(
      check_hdf5(H5Dopen2(handle.get(), name.c_str(), H5P_DEFAULT), file, "open dataset '" + name + "'"));
}

std::string describe_elements(H5T_class_t type) {
  switch (type) {
    case H5T_FLOAT:
      return "floating-point numbers";
    case H5T_STRING:
      return "strings";
    case H5T_VLEN:
      return "rows of varying length";
    case H5T_COMPOUND:
      return "compound records";
    default:
      return "no integers";
  }
}

std::vector<hsize_t> dataset_shape(const Hdf5Dataset& dataset, const std::filesystem::path& file,
                                   const std::string& name) {
  const auto what = "read the shape of '" + name + "'";
  const Hdf5Space space(check_hdf5(H5Dget_space(dataset.get()), file, what));
  const auto rank = check_hdf5(H5Sget_simple_extent_ndims(space.get()), file, what);
  std::vector<hsize_t> shape(static_cast<std::size_t>(rank));
  check_hdf5(H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr), file, what);
  return shape;
}

IntegerType integer_type(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name,
                         std::string& found) {
  const Hdf5Type type(check_hdf5(H5Dget_type(dataset.get()), file, "read the type of '" + name + "'"));
  const auto type_class = H5Tget_class(type.get());
  if (type_class != H5T_INTEGER) {
    found = "dataset '" + name + "' holds " + describe_elements(type_class);
    return {0, false};
  }
  const auto size_bytes = H5Tget_size(type.get());
  return {size_bytes, size_bytes < 4 && H5Tget_sign(type.get()) == H5T_SGN_NONE};
}

bool plausible_size(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::uint64_t count,
                    std::size_t element_bytes) {
  // What deflate, the strongest of the usual filters, can gain at most is 1032.
  constexpr std::uint64_t kMostGain = 2000;
  const Hdf5Properties layout(check_hdf5(H5Dget_create_plist(dataset.get()), file, "read the layout of a dataset"));
  const std::uint64_t gain = H5Pget_nfilters(layout.get()) > 0 ? kMostGain : 1;
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(file, error);
  if (error) return false;
  const std::uint64_t stored_bytes = std::min<std::uint64_t>(H5Dget_storage_size(dataset.get()), file_bytes);
  return count <= stored_bytes * gain / element_bytes;
}

ChunkSizes::ChunkSizes(const Hdf5Dataset& dataset, const std::filesystem::path& file) {
  constexpr const char* kWhat = "read the layout of a dataset";
  const Hdf5Properties layout(check_hdf5(H5Dget_create_plist(dataset.get()), file, kWhat));
  if (H5Pget_layout(layout.get()) != H5D_CHUNKED || H5Pget_nfilters(layout.get()) != 0) return;
  const auto rank = check_hdf5(H5Pget_chunk(layout.get(), 0, nullptr), file, kWhat);
  shape_.resize(static_cast<std::size_t>(rank));
  check_hdf5(H5Pget_chunk(layout.get(), static_cast<int>(rank), shape_.data()), file, kWhat);
  const Hdf5Type type(check_hdf5(H5Dget_type(dataset.get()), file, kWhat));
  bytes_ = H5Tget_size(type.get());
  for (const auto length : shape_) bytes_ *= length;
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
    if (address != HADDR_UNDEF && size != bytes_) {
      throw FormatError(file.string() + ": a chunk of " + std::to_string(size) + " bytes where all have " +
                        std::to_string(bytes_) + "; the file is damaged");
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
