// Virtual datasets; see hdf5_storage.hpp.
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/text/token_files/hdf5_datasets.hpp"
#include "lib/text/token_files/hdf5_storage.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

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
  return {
      name_from([&](char* out, std::size_t size) { return H5Pget_virtual_filename(layout.get(), i, out, size); }, file),
      name_from([&](char* out, std::size_t size) { return H5Pget_virtual_dsetname(layout.get(), i, out, size); }, file),
      Hdf5Space(check_hdf5(H5Pget_virtual_vspace(layout.get(), i), file, kWhat)),
      Hdf5Space(check_hdf5(H5Pget_virtual_srcspace(layout.get(), i), file, kWhat))};
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

/// In a source's name "%b" stands for a number and "%%" for a percent sign.
/// \return nothing when there is a "%b"
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

/// Where HDF5 looks for a source, in its order (H5Pset_virtual_prefix(3), H5F_prefix_open_file in its source).
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

/// The file that HDF5 will take. \throws FormatError when there is none, or when looking for it would wait for ever
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
      if (reason.empty()) reason = unreadable.what();  // HDF5 goes on looking, too
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
  // Later reads of a source are not seen here. Looking up all chunks takes time with the square of their number.
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

/// The elements that no source provides. Mappings are removed one by one.
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
  std::uint64_t taken_ = 0;  ///< by number only, where HDF5 cannot tell
};

}  // namespace

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

}  // namespace fsdp::detail
