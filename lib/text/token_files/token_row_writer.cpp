// Packed rows; see token_file_writer.hpp.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/text/token_files/token_file_output.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kBlock_bytes = std::size_t{4} << 20;

/// The element type, in memory and in the file.
struct RowType {
  hid_t memory;
  hid_t stored;
  std::size_t size_bytes;
};

/// Rows that wait to be written to the dataset of this name; elements have the memory type.
class RowsInWaiting {
 public:
  RowsInWaiting(const std::filesystem::path& file, const char* name)
      : file_(file), name_(name), spool_(detail::nameless_file(file, name)) {}

  /// Append to it, then call spill_some().
  std::vector<std::byte>& pending() { return block_; }
  void spill_some() {
    if (block_.size() < kBlock_bytes) return;
    detail::writing(file_, [&] { spill(); });
  }

  /// Writes the dataset. \param shape  rows and elements of each
  /// \return false when `stop_wanted` said so
  bool copy(const Hdf5File& handle, std::array<hsize_t, 2> shape, RowType type,
            const std::function<bool()>& stop_wanted) {
    spill();
    const auto create = "create dataset '" + name_ + "'", write = "write '" + name_ + "'";
    const Hdf5Space space(check_hdf5(H5Screate_simple(2, shape.data(), nullptr), file_, "create the shape"));
    const Hdf5Properties layout(check_hdf5(H5Pcreate(H5P_DATASET_CREATE), file_, create));
    check_hdf5(H5Pset_obj_track_times(layout.get(), false), file_, create);  // equal runs, equal bytes
    Hdf5Dataset dataset(check_hdf5(
        H5Dcreate2(handle.get(), name_.c_str(), type.stored, space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT),
        file_, create));
    const auto row_bytes = shape[1] * type.size_bytes;
    const auto most_rows = std::max<hsize_t>(1, kBlock_bytes / row_bytes);
    for (hsize_t first = 0; first < shape[0]; first += most_rows) {
      if (stop_wanted && stop_wanted()) return false;
      const std::array<hsize_t, 2> start{first, 0};
      const std::array<hsize_t, 2> part{std::min(most_rows, shape[0] - first), shape[1]};
      block_.resize(part[0] * row_bytes);
      spool_.read_at(first * row_bytes, block_);
      const Hdf5Space memory(check_hdf5(H5Screate_simple(2, part.data(), nullptr), file_, write));
      check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, part.data(), nullptr), file_,
                 write);
      check_hdf5(H5Dwrite(dataset.get(), type.memory, memory.get(), space.get(), H5P_DEFAULT, block_.data()), file_,
                 write);
    }
    check_hdf5(dataset.close(), file_, "complete '" + name_ + "'");
    return true;
  }

 private:
  void spill() {
    spool_.write(block_);
    block_.clear();
  }

  std::filesystem::path file_;
  std::string name_;
  File spool_;
  std::vector<std::byte> block_;
};

class PackedRowsWriter : public TokenFileWriter {
 public:
  PackedRowsWriter(const std::filesystem::path& file, std::int64_t row_length, const TokenFileNotes& notes)
      : row_length_(row_length), output_(file, notes) {
    detail::writing(file, [&] {
      output_.put_attribute("seq_len", row_length);
      ids_.emplace(file, "input_ids");
      if (output_.masked()) mask_.emplace(file, "loss_mask");
    });
  }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    output_.check_mask(ids, mask);
    output_.append(ids, ids_->pending());
    num_ids_ += static_cast<std::int64_t>(ids.size());
    ids_->spill_some();
    if (!mask_) return;
    const auto bytes = std::as_bytes(mask);
    mask_->pending().insert(mask_->pending().end(), bytes.begin(), bytes.end());
    mask_->spill_some();
  }

  bool finish(const std::function<bool()>& stop_wanted) override {
    const auto rows = packed_rows(num_ids_, row_length_);
    if (rows == 0) {
      throw FormatError(output_.file().string() + ": not written: " + std::to_string(num_ids_) +
                        " token ids do not fill one row, which takes " + std::to_string(row_length_ + 1) +
                        " (the row length and one more)");
    }
    return detail::writing(output_.file(), [&] {
      const std::array<hsize_t, 2> shape{static_cast<hsize_t>(rows), static_cast<hsize_t>(row_length_)};
      const RowType id{output_.memory_type(), output_.stored_type(), output_.element_bytes()};
      if (!ids_->copy(output_.handle(), shape, id, stop_wanted)) return false;
      const RowType flag{H5T_NATIVE_UINT8, H5T_STD_U8LE, 1};
      if (mask_ && !mask_->copy(output_.handle(), shape, flag, stop_wanted)) return false;
      output_.commit();
      return true;
    });
  }

 private:
  std::int64_t row_length_;
  detail::TokenFileOutput output_;
  std::optional<RowsInWaiting> ids_, mask_;
  std::int64_t num_ids_ = 0;
};

}  // namespace

std::unique_ptr<TokenFileWriter> write_packed_rows(const std::filesystem::path& file, std::int64_t row_length,
                                                   const TokenFileNotes& notes) {
  if (row_length < 2) {
    throw UsageError("rows of " + std::to_string(row_length) + " token ids: a row needs 2 or more");
  }
  return std::make_unique<PackedRowsWriter>(file, row_length, notes);
}

}  // namespace fsdp
