// Documents; see token_file_writer.hpp.
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/dataset/token_file_output.hpp"

namespace fsdp {
namespace {

constexpr hsize_t kChunk_elements = 16384;
constexpr std::size_t kChunk_bytes = std::size_t{4} << 20;

struct ElementType {
  hid_t memory;
  hid_t stored;
  std::size_t size_bytes;
};

/// A 1-dimensional dataset that grows by blocks of whole chunks.
class GrowingDataset {
 public:
  GrowingDataset(const detail::TokenFileOutput& output, const char* name, ElementType type)
      : output_(output), name_(name), type_(type) {
    const auto what = "create dataset '" + name_ + "'";
    const hsize_t none = 0, any = H5S_UNLIMITED;
    const Hdf5Space space(check_hdf5(H5Screate_simple(1, &none, &any), output.file(), what));
    const Hdf5Properties layout(check_hdf5(H5Pcreate(H5P_DATASET_CREATE), output.file(), what));
    check_hdf5(H5Pset_obj_track_times(layout.get(), false), output.file(), what);  // equal runs, equal bytes
    check_hdf5(H5Pset_chunk(layout.get(), 1, &kChunk_elements), output.file(), what);
    dataset_ = Hdf5Dataset(check_hdf5(
        H5Dcreate2(output.handle().get(), name, type.stored, space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT),
        output.file(), what));
  }

  /// What is to be written: append to it, then call grow().
  std::vector<std::byte>& pending() { return pending_; }
  /// Writes whole chunks once there are enough of them.
  void grow() {
    if (pending_.size() < kChunk_bytes) return;
    const auto chunk_bytes = kChunk_elements * type_.size_bytes;
    detail::writing(output_.file(), [&] { write(pending_.size() / chunk_bytes * chunk_bytes); });
  }
  void finish() {
    write(pending_.size());
    check_hdf5(dataset_.close(), output_.file(), "complete '" + name_ + "'");
  }

 private:
  void write(std::size_t bytes) {
    const auto what = "write '" + name_ + "'";
    const hsize_t count = bytes / type_.size_bytes;
    if (count == 0) return;
    const hsize_t size = length_ + count;
    check_hdf5(H5Dset_extent(dataset_.get(), &size), output_.file(), what);
    const Hdf5Space stored(check_hdf5(H5Dget_space(dataset_.get()), output_.file(), what));
    const Hdf5Space memory(check_hdf5(H5Screate_simple(1, &count, nullptr), output_.file(), what));
    check_hdf5(H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, &length_, nullptr, &count, nullptr), output_.file(),
               what);
    check_hdf5(H5Dwrite(dataset_.get(), type_.memory, memory.get(), stored.get(), H5P_DEFAULT, pending_.data()),
               output_.file(), what);
    length_ = size;
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(bytes));
  }

  const detail::TokenFileOutput& output_;
  std::string name_;
  ElementType type_;
  Hdf5Dataset dataset_;
  hsize_t length_ = 0;  ///< elements written
  std::vector<std::byte> pending_;
};

class DocumentsWriter : public TokenFileWriter {
 public:
  DocumentsWriter(const std::filesystem::path& file, const TokenFileNotes& notes)
      : output_(file, notes), tokens_(make_tokens()), offsets_(make_offsets()), mask_(make_mask()) {
    put_offset();
  }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    output_.check_mask(ids, mask);
    output_.append(ids, tokens_.pending());
    num_ids_ += static_cast<std::int64_t>(ids.size());
    put_offset();
    tokens_.grow();
    offsets_.grow();
    if (!mask_) return;
    const auto bytes = std::as_bytes(mask);
    mask_->pending().insert(mask_->pending().end(), bytes.begin(), bytes.end());
    mask_->grow();
  }

  bool finish(const std::function<bool()>&) override {
    detail::writing(output_.file(), [&] {
      tokens_.finish();
      offsets_.finish();
      if (mask_) mask_->finish();
      output_.commit();
    });
    return true;
  }

 private:
  // Naming a type initialises HDF5: inside writing(), too.
  GrowingDataset make_tokens() const {
    return detail::writing(output_.file(), [&] {
      return GrowingDataset(output_, "tokens", {output_.memory_type(), output_.stored_type(), output_.element_bytes()});
    });
  }
  GrowingDataset make_offsets() const {
    return detail::writing(output_.file(), [&] {
      return GrowingDataset(output_, "offsets", {H5T_NATIVE_INT64, H5T_STD_I64LE, sizeof(std::int64_t)});
    });
  }
  std::optional<GrowingDataset> make_mask() const {
    if (!output_.masked()) return {};
    return detail::writing(output_.file(), [&] {
      return std::optional<GrowingDataset>(std::in_place, output_, "loss_mask",
                                           ElementType{H5T_NATIVE_UINT8, H5T_STD_U8LE, 1});
    });
  }
  void put_offset() {
    auto& bytes = offsets_.pending();
    bytes.resize(bytes.size() + sizeof num_ids_);
    std::memcpy(bytes.data() + bytes.size() - sizeof num_ids_, &num_ids_, sizeof num_ids_);
  }

  detail::TokenFileOutput output_;
  GrowingDataset tokens_;
  GrowingDataset offsets_;
  std::optional<GrowingDataset> mask_;
  std::int64_t num_ids_ = 0;
};

}  // namespace

std::unique_ptr<TokenFileWriter> write_token_documents(const std::filesystem::path& file, const TokenFileNotes& notes) {
  return std::make_unique<DocumentsWriter>(file, notes);
}

}  // namespace fsdp
