// Documents; see token_file_writer.hpp.
#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/text/token_files/row_packing.hpp"
#include "lib/text/token_files/token_file_output.hpp"

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

  /// Bytes to be written: append to them, then call grow().
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
      : output_(file, notes), tokens_(make_tokens()), offsets_(make_offsets("offsets")), mask_(make_mask()) {
    put(num_ids_, offsets_);
  }

  /// The documents that follow are in rows, each closed by end_row().
  void begin_rows(std::int64_t seq_len) {
    rows_.emplace(make_offsets("row_offsets"));
    put(0, *rows_);
    detail::writing(output_.file(), [&] { output_.put_attribute("seq_len", seq_len); });
  }
  void end_row() { put(num_documents_, *rows_); }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    output_.check_mask(ids, mask);
    output_.append(ids, tokens_.pending());
    num_ids_ += static_cast<std::int64_t>(ids.size());
    ++num_documents_;
    put(num_ids_, offsets_);
    tokens_.grow();
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
      if (rows_) rows_->finish();
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
  GrowingDataset make_offsets(const char* name) const {
    return detail::writing(output_.file(), [&] {
      return GrowingDataset(output_, name, {H5T_NATIVE_INT64, H5T_STD_I64LE, sizeof(std::int64_t)});
    });
  }
  std::optional<GrowingDataset> make_mask() const {
    if (!output_.masked()) return {};
    return detail::writing(output_.file(), [&] {
      return std::optional<GrowingDataset>(std::in_place, output_, "loss_mask",
                                           ElementType{H5T_NATIVE_UINT8, H5T_STD_U8LE, 1});
    });
  }
  static void put(std::int64_t offset, GrowingDataset& offsets) {
    auto& bytes = offsets.pending();
    bytes.resize(bytes.size() + sizeof offset);
    std::memcpy(bytes.data() + bytes.size() - sizeof offset, &offset, sizeof offset);
    offsets.grow();
  }

  detail::TokenFileOutput output_;
  GrowingDataset tokens_;
  GrowingDataset offsets_;
  std::optional<GrowingDataset> mask_, rows_;
  std::int64_t num_ids_ = 0, num_documents_ = 0;
};

/// Values stored in a nameless file, to be read in another order.
template <class Value>
class Spool {
 public:
  Spool(const std::filesystem::path& file, const char* what) : spool_(detail::nameless_file(file, what)) {}

  void add(std::span<const Value> values) {
    const auto bytes = std::as_bytes(values);
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    if (pending_.size() >= kChunk_bytes) flush();
  }
  void flush() {
    spool_.write(pending_);
    pending_.clear();
  }
  /// After flush().
  void read(std::int64_t first, std::span<Value> out) const {
    spool_.read_at(static_cast<std::uint64_t>(first) * sizeof(Value), std::as_writable_bytes(out));
  }

 private:
  File spool_;
  std::vector<std::byte> pending_;
};

class PackedDocumentsWriter : public TokenFileWriter {
 public:
  PackedDocumentsWriter(const std::filesystem::path& file, const PackedDocumentsLayout& layout,
                        const TokenFileNotes& notes)
      : file_(file), layout_(layout), masked_(notes.masked), documents_(file, notes) {
    documents_.begin_rows(layout.seq_len);
    detail::writing(file, [&] {
      ids_.emplace(file, "ids");
      if (masked_) mask_.emplace(file, "mask");
    });
  }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    const auto size = static_cast<std::int64_t>(ids.size());
    if (size > layout_.seq_len || (masked_ ? mask.size() != ids.size() : !mask.empty()))
      throw std::invalid_argument("PackedDocumentsWriter: a document is longer than a row or its mask does not fit");
    detail::writing(file_, [&] {
      ids_->add(ids);
      if (masked_) mask_->add(mask);
    });
    starts_.push_back(starts_.back() + size);
  }

  bool finish(const std::function<bool()>& stop_wanted) override {
    std::vector<std::int64_t> tokens;  // of each document: its inputs
    for (std::size_t i = 0; i + 1 < starts_.size(); ++i)
      tokens.push_back(std::max<std::int64_t>(0, starts_[i + 1] - starts_[i] - 1));
    const RowPacking packing(tokens, layout_.seq_len, {layout_.seed, true});
    num_rows_ = packing.num_rows();
    if (num_rows_ == 0) throw FormatError(file_.string() + ": not written: no document has 2 ids");
    detail::writing(file_, [&] {
      ids_->flush();
      if (masked_) mask_->flush();
    });
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      if (stop_wanted && row % 1024 == 0 && stop_wanted()) return false;
      for (const auto document : packing.documents(row, 0)) copy(static_cast<std::size_t>(document));
      documents_.end_row();
    }
    return documents_.finish(stop_wanted);
  }

  std::int64_t document_rows() const override { return num_rows_; }

 private:
  void copy(std::size_t document) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(starts_[document + 1] - starts_[document]));
    std::vector<std::uint8_t> mask(masked_ ? ids.size() : 0);
    detail::writing(file_, [&] {
      ids_->read(starts_[document], ids);
      if (masked_) mask_->read(starts_[document], mask);
    });
    documents_.add(ids, mask);
  }

  std::filesystem::path file_;
  PackedDocumentsLayout layout_;
  bool masked_;
  DocumentsWriter documents_;
  std::optional<Spool<std::int32_t>> ids_;
  std::optional<Spool<std::uint8_t>> mask_;
  std::vector<std::int64_t> starts_{0};
  std::int64_t num_rows_ = 0;
};

}  // namespace

std::unique_ptr<TokenFileWriter> write_token_documents(const std::filesystem::path& file, const TokenFileNotes& notes) {
  return std::make_unique<DocumentsWriter>(file, notes);
}

std::unique_ptr<TokenFileWriter> write_packed_documents(const std::filesystem::path& file,
                                                        const PackedDocumentsLayout& layout,
                                                        const TokenFileNotes& notes) {
  if (layout.seq_len < 2) throw UsageError("rows of " + std::to_string(layout.seq_len) + " tokens hold no document");
  return std::make_unique<PackedDocumentsWriter>(file, layout, notes);
}

}  // namespace fsdp
