#include "lib/formats/hdf5/hdf5_storage.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "lib/base/types/error.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

void check_stored_below(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name,
                        int depth);

// Virtual datasets.

constexpr int kMostDepth = 8;
constexpr std::uint64_t kMostChunks_looked_at = 4096;

/// One part of a virtual dataset.
struct Mapping {
  std::string file;
  std::string dataset;
  Hdf5Space place;   ///< within the virtual dataset
  Hdf5Space source;  ///< within the source
};

/// The facts about a source that are needed to judge a mapping.
struct Source {
  std::vector<hsize_t> shape;
  IntegerType type;
};

template <class Get>
std::string name_from(const Get& get, const fs::path& file) {
  const auto length = check_hdf5(get(nullptr, 0), file, "read a virtual dataset's sources");
  std::string name(static_cast<std::size_t>(length) + 1, '\0');
  check_hdf5(get(name.data(), name.size()), file, "read a virtual dataset's sources");
  name.pop_back();
  return name;
}

std::size_t count_mappings(const Hdf5Properties& layout, const fs::path& file) {
  std::size_t count = 0;
  check_hdf5(H5Pget_virtual_count(layout.get(), &count), file, "read a virtual dataset's sources");
  return count;
}

Mapping read_mapping(const Hdf5Properties& layout, std::size_t i, const fs::path& file) {
  constexpr const char* kWhat = "read a virtual dataset's sources";
  return {.file = name_from(
              [&](char* out, std::size_t size) { return H5Pget_virtual_filename(layout.get(), i, out, size); }, file),
          .dataset = name_from(
              [&](char* out, std::size_t size) { return H5Pget_virtual_dsetname(layout.get(), i, out, size); }, file),
          .place = Hdf5Space(check_hdf5(H5Pget_virtual_vspace(layout.get(), i), file, kWhat)),
          .source = Hdf5Space(check_hdf5(H5Pget_virtual_srcspace(layout.get(), i), file, kWhat))};
}

bool is_unlimited(const Hdf5Space& selection) {
  if (H5Sget_select_type(selection.get()) != H5S_SEL_HYPERSLABS) return false;
  if (H5Sis_regular_hyperslab(selection.get()) <= 0) return false;
  std::vector<hsize_t> start(H5S_MAX_RANK), stride(H5S_MAX_RANK), count(H5S_MAX_RANK), block(H5S_MAX_RANK);
  H5Sget_regular_hyperslab(selection.get(), start.data(), stride.data(), count.data(), block.data());
  for (std::size_t d = 0; d < H5S_MAX_RANK; ++d) {
    if (count[d] == H5S_UNLIMITED || block[d] == H5S_UNLIMITED) return true;
  }
  return false;
}

/// In the name of a source "%b" stands for a number and "%%" for a percent sign.
/// \return the plain name; nothing when the name contains "%b"
std::optional<std::string> plain_name(const std::string& name) {
  std::string plain;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '%' && i + 1 < name.size()) {
      if (name[i + 1] == 'b') return std::nullopt;
      if (name[i + 1] == '%') ++i;
    }
    plain += name[i];
  }
  return plain;
}

/// Lists the paths where HDF5 looks for a source, in its order (H5Pset_virtual_prefix(3), H5F_prefix_open_file in
/// HDF5).
std::vector<fs::path> candidates(const fs::path& file, const std::string& name) {
  std::vector<fs::path> found;
  fs::path relative = name;
  if (relative.is_absolute()) {
    found.push_back(relative);
    relative = relative.filename();
  }
  const auto directory = fs::absolute(file).parent_path();
  if (const char* prefixes = std::getenv("HDF5_VDS_PREFIX"); prefixes != nullptr) {
    std::string rest = prefixes;
    while (!rest.empty()) {
      const auto end = std::min(rest.find(':'), rest.size());
      if (end > 0) found.push_back(fs::path(rest.substr(0, end)) / relative);
      rest.erase(0, end + 1);
    }
    constexpr std::string_view kOrigin = "${ORIGIN}";
    std::string whole = prefixes;
    if (whole.starts_with(kOrigin)) whole.replace(0, kOrigin.size(), directory.string());
    if (!whole.empty()) found.push_back(fs::path(whole) / relative);
  }
  found.push_back(directory / relative);
  found.push_back(relative);
  std::error_code error;
  const auto real = fs::canonical(file, error);
  if (!error) found.push_back(real.parent_path() / relative);
  return found;
}

/// Opens the file that HDF5 will take as the source. \throws FormatError when there is none, or when looking for it
/// would wait for ever
std::pair<Hdf5File, fs::path> open_source_file(const fs::path& file, const std::string& name) {
  if (name == ".") return {open_hdf5_read(file), file};
  std::string reason;
  for (const auto& path : candidates(file, name)) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (!fs::exists(status) || fs::is_directory(status)) continue;
    if (!fs::is_regular_file(status)) throw FormatError(path.string() + ": is no regular file");
    try {
      return {open_hdf5_read(path), path};
    } catch (const Error& unreadable) {
      if (reason.empty()) reason = unreadable.what();  // HDF5 also goes on to the next candidate
    }
  }
  if (!reason.empty()) throw FormatError(reason);
  throw FormatError("'" + name + "' is not there, neither in " + fs::absolute(file).parent_path().string() +
                    " nor in the current directory");
}

Source check_source(const fs::path& file, const Mapping& mapping, int depth) {
  const auto file_name = plain_name(mapping.file), name = plain_name(mapping.dataset);
  const auto [handle, path] = open_source_file(file, file_name.value_or(""));
  const auto dataset = open_dataset(handle, path, name.value_or(""));
  Source source{dataset_shape(dataset, path, *name), {}};
  std::string found;
  source.type = integer_type(dataset, path, *name, found);
  if (source.type.size_bytes == 0) throw FormatError(path.string() + ": " + found + ", expected integers");
  check_stored_below(dataset, path, *name, depth + 1);
  std::uint64_t count = 1;
  for (const auto length : source.shape) count *= length;
  if (!plausible_size(dataset, path, count, source.type.size_bytes)) {
    throw FormatError(path.string() + ": dataset '" + *name + "' claims more elements than the file holds");
  }
  // Later reads of a source are not checked, so all its chunks are looked up here. The time for this grows with the
  // square of their number, which is limited.
  const ChunkSizes chunks(dataset, path);
  if (count > 0 && chunks.count(source.shape) - 1 < kMostChunks_looked_at) {
    chunks.check(dataset, path, std::vector<hsize_t>(source.shape.size(), 0), source.shape);
  }
  return source;
}

void check_extent(const Mapping& mapping, const Source& source, const fs::path& file) {
  const auto wanted = H5Sget_select_npoints(mapping.place.get());
  if (H5Sget_select_type(mapping.source.get()) == H5S_SEL_ALL) {
    hsize_t count = 1;
    for (const auto length : source.shape) count *= length;
    if (count == static_cast<hsize_t>(wanted)) return;
    throw FormatError(mapping.file + ": dataset '" + mapping.dataset + "' has " + std::to_string(count) +
                      " elements, expected " + std::to_string(wanted));
  }
  const auto rank = check_hdf5(H5Sget_simple_extent_ndims(mapping.source.get()), file, "read a source's place");
  bool fits = static_cast<std::size_t>(rank) == source.shape.size();
  std::vector<hsize_t> first(static_cast<std::size_t>(rank)), last(first.size());
  check_hdf5(H5Sget_select_bounds(mapping.source.get(), first.data(), last.data()), file, "read a source's place");
  for (std::size_t d = 0; fits && d < last.size(); ++d) fits = last[d] < source.shape[d];
  if (fits) return;
  std::string shape;
  for (const auto length : source.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(length);
  throw FormatError(mapping.file + ": dataset '" + mapping.dataset + "' of shape [" + shape +
                    "] is too small for what is taken from it");
}

/// Elements of a virtual dataset that no source provides. take() removes the elements of one mapping.
class Uncovered {
 public:
  Uncovered(const Hdf5Dataset& dataset, const fs::path& file, const std::string& name)
      : shape_(dataset_shape(dataset, file, name)),
        space_(check_hdf5(H5Screate_simple(static_cast<int>(shape_.size()), shape_.data(), nullptr), file, kWhat)) {
    const std::vector<hsize_t> start(shape_.size(), 0);
    check_hdf5(H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, start.data(), nullptr, shape_.data(), nullptr), file,
               kWhat);
  }

  void take(const Hdf5Space& place, const fs::path& file) {
    if (count() == 0) return;
    if (H5Sget_select_type(place.get()) == H5S_SEL_ALL) {
      check_hdf5(H5Sselect_none(space_.get()), file, kWhat);
      return;
    }
#if H5_VERSION_GE(1, 10, 6)
    check_hdf5(H5Smodify_select(space_.get(), H5S_SELECT_NOTB, place.get()), file, kWhat);
#else
    taken_ += static_cast<std::uint64_t>(H5Sget_select_npoints(place.get()));
#endif
  }
  std::uint64_t count() const {
    const auto left = static_cast<std::uint64_t>(H5Sget_select_npoints(space_.get()));
    return left > taken_ ? left - taken_ : 0;
  }

 private:
  static constexpr const char* kWhat = "add up a virtual dataset's sources";
  std::vector<hsize_t> shape_;
  Hdf5Space space_;
  std::uint64_t taken_ = 0;  ///< elements removed by number only, where HDF5 cannot subtract selections
};

/// \throws FormatError for a virtual dataset whose size or whose source names depend on which files are there
void refuse_growing_virtual(const Hdf5Properties& layout, const fs::path& file, const std::string& name) {
  if (H5Pget_layout(layout.get()) != H5D_VIRTUAL) return;
  for (std::size_t i = 0; i < count_mappings(layout, file); ++i) {
    const auto mapping = read_mapping(layout, i, file);
    if (!is_unlimited(mapping.place) && plain_name(mapping.file) && plain_name(mapping.dataset)) continue;
    throw FormatError(file.string() + ": dataset '" + name + "' is virtual and as large as what it finds of '" +
                      mapping.file + "', so that nobody can tell whether something is missing; expected sources of " +
                      "fixed sizes and names");
  }
}

/// The part of check_stored() for virtual datasets.
/// \param depth  number of virtual datasets above this one
void check_virtual_sources(const Hdf5Dataset& dataset, const fs::path& file, const std::string& name, int depth) {
  const auto refuse = [&](const std::string& why) {
    throw FormatError(file.string() + ": dataset '" + name + "' is virtual, and " + why);
  };
  if (depth >= kMostDepth) refuse("so are its sources, " + std::to_string(kMostDepth) + " files deep");
  const Hdf5Properties layout(check_hdf5(H5Dget_create_plist(dataset.get()), file, "read the layout of a dataset"));
  std::string unused;
  const auto type = integer_type(dataset, file, name, unused);
  Uncovered uncovered(dataset, file, name);
  std::map<std::pair<std::string, std::string>, Source> known;
  for (std::size_t i = 0; i < count_mappings(layout, file); ++i) {
    const auto mapping = read_mapping(layout, i, file);
    auto& source = known[{mapping.file, mapping.dataset}];
    try {
      if (source.shape.empty()) source = check_source(file, mapping, depth);
      check_extent(mapping, source, file);
    } catch (const Error& error) {
      refuse("a source of it cannot be used: " + std::string(error.what()));
    }
    if (type.fits_int32 && !source.type.fits_int32) {
      refuse("its source '" + mapping.file + "' holds a wider type of integers than itself");
    }
    uncovered.take(mapping.place, file);
  }
  if (uncovered.count() > 0) {
    refuse("none of its sources has " + std::to_string(uncovered.count()) +
           " of its elements, which would be read as zeros");
  }
}

// Datasets of any layout.

constexpr const char* kLayout = "read the layout of a dataset";
// Deflate, the strongest of the usual filters, compresses by a factor of at most 1032.
constexpr std::uint64_t kMostGain = 2000;
// Chunks up to this size are accepted: other filters compress more where all ids are equal.
constexpr std::uint64_t kHarmlessChunk_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargest = (std::uint64_t{1} << 63) - 1;

std::string dataset_of(const std::filesystem::path& file, const std::string& name) {
  return file.string() + ": dataset '" + name + "' ";
}

/// Multiplies; returns the largest number on overflow.
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

/// Called by HDF5 before it opens the target of an external link. Pushes the message that open_dataset() finds in the
/// error stack of the failed call.
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

/// check_stored() of a dataset below `depth` virtual ones.
void check_stored_below(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name,
                        int depth) {
  const Hdf5Space space(check_hdf5(H5Dget_space(dataset.get()), file, "read the shape of '" + name + "'"));
  const auto count = check_hdf5(H5Sget_simple_extent_npoints(space.get()), file, "read the shape of '" + name + "'");
  if (count == 0) return;
  const auto layout = H5Pget_layout(creation_properties(dataset, file).get());
  if (layout == H5D_VIRTUAL) return check_virtual_sources(dataset, file, name, depth);
  if (layout == H5D_CHUNKED) return check_chunks_stored(dataset, file, name);
  if (layout != H5D_CONTIGUOUS) return;  // compact: the values are in the header
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
  // A filter that does not compress adds a few bytes.
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
    // Advance to the next chunk, the last dimension first.
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
