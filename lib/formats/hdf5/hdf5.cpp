#include "lib/formats/hdf5/hdf5.hpp"

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

std::recursive_mutex& library_mutex() {
  // HDF5 has one state per process, and this mutex guards that state.
  static std::recursive_mutex mutex;
  // HDF5 leaks memory on damaged files and reports the leaks at exit at length. All handles are closed before.
  [[maybe_unused]] static const herr_t quiet = H5dont_atexit();
  return mutex;
}

extern "C" herr_t append_description(unsigned, const H5E_error2_t* error, void* text) {
  auto& joined = *static_cast<std::string*>(text);
  if (error->desc == nullptr) return 0;
  // Levels of the stack often repeat a sentence: keep only the first.
  if (joined.ends_with(error->desc)) return 0;
  if (!joined.empty()) joined += ": ";
  joined += error->desc;
  return 0;
}

herr_t append_name(hid_t, const char* name, const H5L_info_t*, void* names) {
  auto& joined = *static_cast<std::string*>(names);
  joined += (joined.empty() ? "'" : ", '") + std::string(name) + "'";
  return joined.size() > 200 ? 1 : 0;  // enough to recognise the file by
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

}  // namespace

Hdf5Scope::Hdf5Scope() : lock_(library_mutex()) {
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Scope::~Hdf5Scope() { H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_); }

std::string hdf5_error_stack() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, append_description, &text);
  return text;
}

hid_t check_hdf5(hid_t result, const std::filesystem::path& file, const std::string& what) {
  if (result >= 0) return result;
  const auto stack = hdf5_error_stack();
  throw FormatError(file.string() + ": cannot " + what + (stack.empty() ? "" : ": " + stack));
}

Hdf5Properties unlocked_file_access(const std::filesystem::path& file) {
  const Hdf5Scope scope;
  Hdf5Properties access(check_hdf5(H5Pcreate(H5P_FILE_ACCESS), file, "prepare to open"));
#if H5_VERSION_GE(1, 10, 7)
  check_hdf5(H5Pset_file_locking(access.get(), false, true), file, "turn file locking off");
#endif
  return access;
}

Hdf5File open_hdf5_read(const std::filesystem::path& file) {
  // HDF5 hides the reason of the operating system deep in its stack: try to open the file directly first.
  if (std::filesystem::is_directory(file)) throw FormatError(file.string() + ": is a directory, not an HDF5 file");
  File::open_read(file).close();
  const Hdf5Scope scope;
  const auto access = unlocked_file_access(file);
  if (H5Fis_hdf5(file.c_str()) == 0) {
    throw FormatError(file.string() + ": is not an HDF5 file (its signature is missing)");
  }
  return Hdf5File(check_hdf5(H5Fopen(file.c_str(), H5F_ACC_RDONLY, access.get()), file, "open as HDF5"));
}

namespace detail {

bool has_dataset(const Hdf5File& handle, const char* name) { return H5Lexists(handle.get(), name, H5P_DEFAULT) > 0; }

std::string member_names(const Hdf5File& handle) {
  std::string names;
  H5Literate(handle.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, append_name, &names);
  return names;
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
    return {.size_bytes = 0, .fits_int32 = false};
  }
  const auto size_bytes = H5Tget_size(type.get());
  return {.size_bytes = size_bytes, .fits_int32 = size_bytes < 4 && H5Tget_sign(type.get()) == H5T_SGN_NONE};
}

}  // namespace detail

}  // namespace fsdp
