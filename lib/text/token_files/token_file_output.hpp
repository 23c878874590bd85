#pragma once
// Parts that both writers of token files share: the hidden sibling, the attributes, the element type, the final rename.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/text/token_files/hdf5.hpp"
#include "lib/text/token_files/token_file_writer.hpp"

namespace fsdp::detail {

/// An HDF5 file on its way to its name.
class TokenFileOutput {
 public:
  /// Creates the sibling. \throws UsageError, IoError
  TokenFileOutput(const std::filesystem::path& file, const TokenFileNotes& notes);
  TokenFileOutput(const TokenFileOutput&) = delete;
  TokenFileOutput& operator=(const TokenFileOutput&) = delete;
  ~TokenFileOutput();

  const std::filesystem::path& file() const { return file_; }
  const Hdf5File& handle() const { return handle_; }
  /// Bytes of an id: 2 or 4.
  std::size_t element_bytes() const { return element_bytes_; }
  hid_t memory_type() const { return element_bytes_ == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32; }
  hid_t stored_type() const { return element_bytes_ == 2 ? H5T_STD_U16LE : H5T_STD_U32LE; }

  /// Appends ids in the memory type. \throws std::invalid_argument when one is not in [0, vocab_size)
  void append(std::span<const std::int32_t> ids, std::vector<std::byte>& bytes) const;

  /// `loss_mask` is to be written. \throws std::invalid_argument where `mask` does not fit to that and to the ids
  bool masked() const { return masked_; }
  void check_mask(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) const;

  void put_attribute(const char* name, const std::string& text) const;
  void put_attribute(const char* name, std::int64_t value) const;

  /// Closes, syncs and renames. Datasets are closed before.
  void commit();

 private:
  void create(const TokenFileNotes& notes);
  void discard() noexcept;

  std::filesystem::path file_;
  std::filesystem::path temporary_;
  std::int64_t vocab_size_;
  std::size_t element_bytes_;
  bool masked_;
  Hdf5File handle_;
};

/// A file without a name beside `file`: it goes with the process, however that ends. \param what  part of its name
File nameless_file(const std::filesystem::path& file, const char* what);

/// \throws IoError "FILE: token file not written: REASON"
[[noreturn]] void throw_not_written(const std::filesystem::path& file, const std::exception& error);

/// Runs `work`; what HDF5 refuses is then an error of the output, not of an input. \throws IoError naming `file`
template <class Work>
auto writing(const std::filesystem::path& file, const Work& work) {
  try {
    const Hdf5Scope scope;
    return work();
  } catch (const std::exception& error) {
    throw_not_written(file, error);
  }
}

}  // namespace fsdp::detail
