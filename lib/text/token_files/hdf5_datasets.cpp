#include "lib/text/token_files/hdf5_datasets.hpp"

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

}  // namespace fsdp::detail
