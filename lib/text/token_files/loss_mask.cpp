#include "lib/text/token_files/loss_mask.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "lib/base/error.hpp"
#include "lib/text/token_files/hdf5_datasets.hpp"

namespace fsdp::detail {
namespace {

constexpr const char* kLossMask = "loss_mask";

std::string list_of(std::span<const hsize_t> numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

/// h5py writes truth values as an enumeration of FALSE and TRUE in one byte.
bool is_truth_values(const Hdf5Dataset& dataset, const std::filesystem::path& file) {
  const Hdf5Type type(check_hdf5(H5Dget_type(dataset.get()), file, "read the type of 'loss_mask'"));
  return H5Tget_class(type.get()) == H5T_ENUM && H5Tget_size(type.get()) == 1;
}

}  // namespace

std::optional<LossMask> LossMask::find(const Hdf5File& handle, const std::filesystem::path& file,
                                       std::span<const hsize_t> shape) {
  if (!has_dataset(handle, kLossMask)) return std::nullopt;
  LossMask mask;
  mask.dataset_ = open_dataset(handle, file, kLossMask);
  std::string what;
  const auto type = integer_type(mask.dataset_, file, kLossMask, what);
  mask.truth_values_ = is_truth_values(mask.dataset_, file);
  if (type.size_bytes == 0 && !mask.truth_values_)
    throw FormatError(file.string() + ": " + what + ", expected 0 and 1 (uint8)");
  const auto found = dataset_shape(mask.dataset_, file, kLossMask);
  if (!std::equal(found.begin(), found.end(), shape.begin(), shape.end()))
    throw FormatError(file.string() + ": dataset 'loss_mask' has the shape " + list_of(found) + ", expected " +
                      list_of(shape) + " as of the ids: one number for each");
  check_stored(mask.dataset_, file, kLossMask);
  mask.chunks_ = ChunkSizes(mask.dataset_, file);
  return mask;
}

void LossMask::read(const std::filesystem::path& file, std::span<const hsize_t> start, std::span<const hsize_t> count,
                    std::span<std::uint8_t> out) const {
  hsize_t elements = 1;
  for (const auto part : count) elements *= part;
  if (elements != out.size()) throw std::invalid_argument("LossMask::read: the block and `out` differ in size");
  const auto what = "read 'loss_mask'";
  chunks_.check(dataset_, file, start, count);
  const Hdf5Space stored(check_hdf5(H5Dget_space(dataset_.get()), file, what));
  const Hdf5Space memory(check_hdf5(H5Screate_simple(1, &elements, nullptr), file, what));
  check_hdf5(H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr), file,
             what);
  // HDF5 clips what does not fit: 300 and -1 would become 255 and 0.
  std::vector<std::int64_t> values(out.size());
  if (truth_values_) {
    const Hdf5Type type(check_hdf5(H5Dget_type(dataset_.get()), file, what));
    check_hdf5(H5Dread(dataset_.get(), type.get(), memory.get(), stored.get(), H5P_DEFAULT, out.data()), file, what);
    std::copy(out.begin(), out.end(), values.begin());
  } else {
    check_hdf5(H5Dread(dataset_.get(), H5T_NATIVE_INT64, memory.get(), stored.get(), H5P_DEFAULT, values.data()), file,
               what);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0 && values[i] != 1)
      throw FormatError(file.string() + ": loss_mask is " + std::to_string(values[i]) + " at " + std::to_string(i) +
                        " behind " + list_of(start) + ", expected 0 or 1");
    out[i] = static_cast<std::uint8_t>(values[i]);
  }
}

}  // namespace fsdp::detail
