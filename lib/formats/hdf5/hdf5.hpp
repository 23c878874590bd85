#pragma once
// Owned handles of the HDF5 C API, and its failures as exceptions that carry the library's error stack. HDF5 keeps
// process-wide state and may be built without thread safety, so every call into it, including closing handles, is made
// inside an Hdf5Scope.
#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// During its life this thread alone is inside HDF5, and HDF5 prints nothing on stderr. Scopes may be nested.
class Hdf5Scope {
 public:
  Hdf5Scope();
  ~Hdf5Scope();
  Hdf5Scope(const Hdf5Scope&) = delete;
  Hdf5Scope& operator=(const Hdf5Scope&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

/// Owns one HDF5 identifier; `Close` is the close function of its kind. The destructor ignores a failing close; writers
/// call close() and check its result.
template <herr_t (*Close)(hid_t)>
class UniqueHid {
 public:
  UniqueHid() = default;
  explicit UniqueHid(hid_t id) noexcept : id_(id) {}
  UniqueHid(UniqueHid&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  UniqueHid& operator=(UniqueHid&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  UniqueHid(const UniqueHid&) = delete;
  UniqueHid& operator=(const UniqueHid&) = delete;
  ~UniqueHid() {
    if (id_ < 0) return;
    const Hdf5Scope scope;
    Close(id_);
  }

  hid_t get() const noexcept { return id_; }
  /// \return the status of the library, negative on failure; the object owns nothing afterwards
  [[nodiscard]] herr_t close() noexcept { return Close(std::exchange(id_, H5I_INVALID_HID)); }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using Hdf5File = UniqueHid<H5Fclose>;
using Hdf5Dataset = UniqueHid<H5Dclose>;
using Hdf5Space = UniqueHid<H5Sclose>;
using Hdf5Type = UniqueHid<H5Tclose>;
using Hdf5Properties = UniqueHid<H5Pclose>;

/// Returns the error stack of the last failed call, outermost first: "unable to open file: file signature not found".
/// Empty when HDF5 reported no error. To be called in the Hdf5Scope of the failed call, because entering another one
/// clears the stack.
std::string hdf5_error_stack();

/// Returns `result` (an identifier or a status) unless it is negative. To be called in the Hdf5Scope of the call that
/// returned `result`.
/// \throws FormatError "FILE: cannot WHAT: <error stack>"
hid_t check_hdf5(hid_t result, const std::filesystem::path& file, const std::string& what);

/// Properties for opening or creating a file without flock(2).
/// \param file  for the message
Hdf5Properties unlocked_file_access(const std::filesystem::path& file);

/// Opens a file for reading without a file lock, so that any number of processes may read it, also on file systems
/// without flock(2) (Lustre and GPFS as often mounted).
/// \throws IoError when the file cannot be opened; FormatError when it is not an HDF5 file or is truncated
Hdf5File open_hdf5_read(const std::filesystem::path& file);

// Helpers of the readers. Call inside an Hdf5Scope.
namespace detail {

bool has_dataset(const Hdf5File& handle, const char* name);

/// Lists the names in the root group for a message, at most about 200 characters: "'tokens', 'offsets'".
std::string member_names(const Hdf5File& handle);

/// Returns the lengths of all dimensions. \throws FormatError
std::vector<hsize_t> dataset_shape(const Hdf5Dataset& dataset, const std::filesystem::path& file,
                                   const std::string& name);

/// Bytes of an element, and whether every value of the stored type is an id in [0, 2^31).
struct IntegerType {
  std::size_t size_bytes;
  bool fits_int32;
};
/// \return size_bytes 0 when the elements are no integers; `found` then says what they are
IntegerType integer_type(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name,
                         std::string& found);

}  // namespace detail

}  // namespace fsdp
