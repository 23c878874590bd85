// Packed rows; see token_file_writer.hpp.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/shared_write.hpp"
#include "lib/dataset/token_file_output.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kBlock_bytes = std::size_t{4} << 20;

/// A file without a name: it goes with the process, however that ends.
File nameless_file(const std::filesystem::path& beside) {
  auto name = beside;
  name.replace_filename("." + beside.filename().string() + "." + process_tag() + ".ids.tmp");
  auto file = File::create_new(name);
  std::filesystem::remove(name);
  return file;
}

class PackedRowsWriter : public TokenFileWriter {
 public:
  PackedRowsWriter(const std::filesystem::path& file, std::int64_t row_length, const TokenFileNotes& notes)
      : row_length_(row_length), output_(file, notes) {
    detail::writing(file, [&] {
      output_.put_attribute("seq_len", row_length);
      spool_ = nameless_file(file);
    });
  }

  void add(std::span<const std::int32_t> ids) override {
    output_.append(ids, block_);
    num_ids_ += static_cast<std::int64_t>(ids.size());
    if (block_.size() >= kBlock_bytes) {
      detail::writing(output_.file(), [&] { spill(); });
    }
  }

  bool finish(const std::function<bool()>& stop_wanted) override {
    const auto rows = packed_rows(num_ids_, row_length_);
    if (rows == 0) {
      throw FormatError(output_.file().string() + ": not written: " + std::to_string(num_ids_) +
                        " token ids do not fill one row, which takes " + std::to_string(row_length_ + 1) +
                        " (the row length and one more)");
    }
    return detail::writing(output_.file(), [&] {
      spill();
      if (!copy_rows(rows, stop_wanted)) return false;
      output_.commit();
      return true;
    });
  }

 private:
  void spill() {
    spool_.write(block_);
    block_.clear();
  }

  bool copy_rows(std::int64_t rows, const std::function<bool()>& stop_wanted) {
    const auto& file = output_.file();
    const std::array<hsize_t, 2> shape{static_cast<hsize_t>(rows), static_cast<hsize_t>(row_length_)};
    const Hdf5Space space(check_hdf5(H5Screate_simple(2, shape.data(), nullptr), file, "create the shape"));
    const Hdf5Properties layout(check_hdf5(H5Pcreate(H5P_DATASET_CREATE), file, "create dataset 'input_ids'"));
    check_hdf5(H5Pset_obj_track_times(layout.get(), false), file,
               "create dataset 'input_ids'");  // equal runs, equal bytes
    Hdf5Dataset dataset(check_hdf5(H5Dcreate2(output_.handle().get(), "input_ids", output_.stored_type(), space.get(),
                                              H5P_DEFAULT, layout.get(), H5P_DEFAULT),
                                   file, "create dataset 'input_ids'"));
    const auto row_bytes = shape[1] * output_.element_bytes();
    const auto most_rows = std::max<hsize_t>(1, kBlock_bytes / row_bytes);
    for (hsize_t first = 0; first < shape[0]; first += most_rows) {
      if (stop_wanted && stop_wanted()) return false;
      const std::array<hsize_t, 2> start{first, 0};
      const std::array<hsize_t, 2> part{std::min(most_rows, shape[0] - first), shape[1]};
      block_.resize(part[0] * row_bytes);
      spool_.read_at(first * row_bytes, block_);
      const Hdf5Space memory(check_hdf5(H5Screate_simple(2, part.data(), nullptr), file, "write 'input_ids'"));
      check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, part.data(), nullptr), file,
                 "write 'input_ids'");
      check_hdf5(H5Dwrite(dataset.get(), output_.memory_type(), memory.get(), space.get(), H5P_DEFAULT, block_.data()),
                 file, "write 'input_ids'");
    }
    check_hdf5(dataset.close(), file, "complete 'input_ids'");
    return true;
  }

  std::int64_t row_length_;
  detail::TokenFileOutput output_;
  File spool_;  ///< the ids so far, in the memory type
  std::vector<std::byte> block_;
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
