#include "lib/token_files/token_file_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/files/nameless_file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/formats/hdf5/hdf5.hpp"
#include "lib/token_files/row_packing.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kBlock_bytes = std::size_t{4} << 20;  ///< bytes of a dataset that are held in memory

/// The element type, in memory and in the file.
struct ElementType {
  hid_t memory;
  hid_t stored;
  std::size_t size_bytes;
};

/// Type of a loss mask. Call inside an Hdf5Scope.
ElementType mask_type() { return {.memory = H5T_NATIVE_UINT8, .stored = H5T_STD_U8LE, .size_bytes = 1}; }

/// An HDF5 file that is written to a hidden sibling and gets its name when it is complete.
class TokenFileOutput {
 public:
  /// Creates the hidden sibling. \throws RequestError, IoError
  TokenFileOutput(const std::filesystem::path& file, const TokenFileNotes& notes);
  TokenFileOutput(const TokenFileOutput&) = delete;
  TokenFileOutput& operator=(const TokenFileOutput&) = delete;
  ~TokenFileOutput();

  const std::filesystem::path& file() const { return file_; }
  const Hdf5File& handle() const { return handle_; }
  /// Call inside an Hdf5Scope.
  ElementType id_type() const {
    if (element_bytes_ == 2) return {.memory = H5T_NATIVE_UINT16, .stored = H5T_STD_U16LE, .size_bytes = 2};
    return {.memory = H5T_NATIVE_UINT32, .stored = H5T_STD_U32LE, .size_bytes = 4};
  }

  /// Appends ids in the memory type. \throws std::invalid_argument when one is not in [0, vocab_size)
  void append(std::span<const std::int32_t> ids, std::vector<std::byte>& bytes) const;

  /// True when `loss_mask` is written.
  bool masked() const { return masked_; }
  /// \throws std::invalid_argument when `mask` does not match masked() and the number of ids
  void check_mask(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) const;

  void put_attribute(const char* name, const std::string& text) const;
  void put_attribute(const char* name, std::int64_t value) const;

  /// Closes, syncs and renames the file. All datasets must be closed.
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

/// \throws IoError "FILE: token file not written: REASON"
[[noreturn]] void throw_not_written(const std::filesystem::path& file, const std::exception& error);

/// Runs `work` and reports HDF5's failures as errors of the output file. \throws IoError naming `file`
template <class Work>
auto writing(const std::filesystem::path& file, const Work& work) {
  try {
    const Hdf5Scope scope;
    return work();
  } catch (const std::exception& error) {
    throw_not_written(file, error);
  }
}

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

/// The path of the file until it is complete.
std::filesystem::path hidden_sibling(const std::filesystem::path& file) {
  return directory_of(file) / ("." + file.filename().string() + "." + process_tag() + ".tmp");
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

/// Extracts the system's reason from HDF5's message: "..., error message = 'No space left on device', buf = ...".
std::string short_reason(const std::string& text) {
  constexpr std::string_view kMark = "error message = '";
  const auto at = text.find(kMark);
  const auto end = at == std::string::npos ? at : text.find('\'', at + kMark.size());
  return end == std::string::npos ? text : text.substr(at + kMark.size(), end - at - kMark.size());
}

template <class Id>
void append_as(std::span<const std::int32_t> ids, std::int64_t vocab_size, std::vector<std::byte>& bytes) {
  auto at = bytes.size();
  bytes.resize(at + ids.size() * sizeof(Id));
  for (const auto id : ids) {
    if (id < 0 || id >= vocab_size) {
      throw std::invalid_argument("token id " + std::to_string(id) + " is not in [0, " + std::to_string(vocab_size) +
                                  ")");
    }
    const auto value = static_cast<Id>(id);
    std::memcpy(bytes.data() + at, &value, sizeof value);
    at += sizeof value;
  }
}

void throw_not_written(const std::filesystem::path& file, const std::exception& error) {
  auto reason = short_reason(error.what());
  const auto hidden = hidden_sibling(file).string();
  for (auto at = reason.find(hidden); at != reason.npos; at = reason.find(hidden)) {
    reason.replace(at, hidden.size(), file.string());
  }
  throw IoError(file.string() + ": token file not written: " + reason);
}

TokenFileOutput::TokenFileOutput(const std::filesystem::path& file, const TokenFileNotes& notes)
    : file_(seekable_output(file)),
      temporary_(hidden_sibling(file_)),
      vocab_size_(notes.vocab_size),
      element_bytes_(notes.vocab_size <= 65536 ? 2 : 4),
      masked_(notes.masked) {
  if (vocab_size_ < 1) throw RequestError("a vocabulary of " + std::to_string(vocab_size_) + " ids");
  check_token_output(file);
  try {
    writing(file_, [&] { create(notes); });
  } catch (...) {
    discard();
    throw;
  }
}

void TokenFileOutput::create(const TokenFileNotes& notes) {
  // Created here first, because HDF5 would hide the system's reason deep in its stack.
  File::create(temporary_).close();
  const auto access = unlocked_file_access(temporary_);
  handle_ = Hdf5File(
      check_hdf5(H5Fcreate(temporary_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), temporary_, "create"));
  put_attribute("tokenizer", notes.tokenizer);
  put_attribute("tokenizer_description", notes.tokenizer_description);
  put_attribute("vocab_size", notes.vocab_size);
  put_attribute("source_files", joined_lines(notes.sources));
  if (!notes.chat_template.empty()) put_attribute("chat_template", notes.chat_template);
  if (!notes.train_on.empty()) put_attribute("train_on", notes.train_on);
  if (notes.has_preferences) put_attribute("preferences", 1);
  if (notes.judged) put_attribute("judged", 1);
  if (!notes.head.empty()) {
    put_attribute("head", notes.head);
    put_attribute("pad_token_id", notes.padding_id);
  }
  if (!notes.labels.empty()) put_attribute("labels", json_text(notes.labels));
}

TokenFileOutput::~TokenFileOutput() { discard(); }

void TokenFileOutput::discard() noexcept {
  handle_ = Hdf5File();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void TokenFileOutput::check_mask(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) const {
  if (mask.size() != (masked_ ? ids.size() : 0))
    throw std::invalid_argument("a loss mask of " + std::to_string(mask.size()) + " for " + std::to_string(ids.size()) +
                                " ids");
}

void TokenFileOutput::append(std::span<const std::int32_t> ids, std::vector<std::byte>& bytes) const {
  if (element_bytes_ == 2) {
    append_as<std::uint16_t>(ids, vocab_size_, bytes);
  } else {
    append_as<std::uint32_t>(ids, vocab_size_, bytes);
  }
}

void TokenFileOutput::put_attribute(const char* name, const std::string& text) const {
  const auto what = "write attribute '" + std::string(name) + "'";
  const Hdf5Type type(check_hdf5(H5Tcopy(H5T_C_S1), temporary_, what));
  check_hdf5(H5Tset_size(type.get(), H5T_VARIABLE), temporary_, what);
  check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), temporary_, what);
  const Hdf5Space scalar(check_hdf5(H5Screate(H5S_SCALAR), temporary_, what));
  const UniqueHid<H5Aclose> attribute(check_hdf5(
      H5Acreate2(handle_.get(), name, type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT), temporary_, what));
  const char* value = text.c_str();
  check_hdf5(H5Awrite(attribute.get(), type.get(), &value), temporary_, what);
}

void TokenFileOutput::put_attribute(const char* name, std::int64_t value) const {
  const auto what = "write attribute '" + std::string(name) + "'";
  const Hdf5Space scalar(check_hdf5(H5Screate(H5S_SCALAR), temporary_, what));
  const UniqueHid<H5Aclose> attribute(check_hdf5(
      H5Acreate2(handle_.get(), name, H5T_STD_I64LE, scalar.get(), H5P_DEFAULT, H5P_DEFAULT), temporary_, what));
  check_hdf5(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), temporary_, what);
}

void TokenFileOutput::commit() {
  check_hdf5(handle_.close(), temporary_, "complete the file");
  File::open_read(temporary_).sync();
  keep_mode(file_, temporary_);
  std::filesystem::rename(temporary_, file_);
  sync_directory(directory_of(file_));
}

/// Rows of one dataset, collected in a nameless file until their number is known. Elements have the memory type.
class RowsInWaiting {
 public:
  RowsInWaiting(const std::filesystem::path& file, const char* name)
      : file_(file), name_(name), spool_(nameless_file(file, name)) {}

  /// Bytes to be written: append to them, then call spill_some().
  std::vector<std::byte>& pending() { return block_; }
  void spill_some() {
    if (block_.size() < kBlock_bytes) return;
    writing(file_, [&] { spill(); });
  }

  /// Writes the dataset.
  /// \param shape  rows, elements of each row
  /// \return false when `stop_wanted` returned true
  bool copy(const Hdf5File& handle, std::array<hsize_t, 2> shape, ElementType type,
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

/// The dataset of rows and its mask. Rows follow each other without gaps in what put() gets.
class RowsWriter : public TokenFileWriter {
 public:
  RowsWriter(const std::filesystem::path& file, const TokenFileNotes& notes) : output_(file, notes) {
    writing(file, [&] {
      ids_.emplace(file, "input_ids");
      if (output_.masked()) mask_.emplace(file, "loss_mask");
    });
  }

 protected:
  const TokenFileOutput& output() const { return output_; }
  void put(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) {
    output_.append(ids, ids_->pending());
    ids_->spill_some();
    if (!mask_) return;
    const auto bytes = std::as_bytes(mask);
    mask_->pending().insert(mask_->pending().end(), bytes.begin(), bytes.end());
    mask_->spill_some();
  }

  bool write_rows(std::int64_t rows, std::int64_t row_length, const std::function<bool()>& stop_wanted) {
    return writing(output_.file(), [&] {
      const std::array<hsize_t, 2> shape{static_cast<hsize_t>(rows), static_cast<hsize_t>(row_length)};
      const ElementType id = output_.id_type();
      if (!ids_->copy(output_.handle(), shape, id, stop_wanted)) return false;
      const ElementType flag = mask_type();
      if (mask_ && !mask_->copy(output_.handle(), shape, flag, stop_wanted)) return false;
      output_.commit();
      return true;
    });
  }

 private:
  TokenFileOutput output_;
  std::optional<RowsInWaiting> ids_, mask_;
};

class PackedRowsWriter : public RowsWriter {
 public:
  PackedRowsWriter(const std::filesystem::path& file, std::int64_t row_length, const TokenFileNotes& notes)
      : RowsWriter(file, notes), row_length_(row_length) {
    writing(file, [&] { output().put_attribute("seq_len", row_length); });
  }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    output().check_mask(ids, mask);
    put(ids, mask);
    num_ids_ += std::ssize(ids);
  }

  bool finish(const std::function<bool()>& stop_wanted) override {
    const auto rows = packed_rows(num_ids_, row_length_);
    if (rows == 0) {
      throw FormatError(output().file().string() + ": not written: " + std::to_string(num_ids_) +
                        " token ids do not fill one row, which takes " + std::to_string(row_length_ + 1) +
                        " (the row length and one more)");
    }
    return write_rows(rows, row_length_, stop_wanted);
  }

 private:
  std::int64_t row_length_;
  std::int64_t num_ids_ = 0;
};

class OverlappingRowsWriter : public RowsWriter {
 public:
  OverlappingRowsWriter(const std::filesystem::path& file, std::int64_t row_length, const TokenFileNotes& notes)
      : RowsWriter(file, notes), row_length_(row_length) {}

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    output().check_mask(ids, mask);
    while (!ids.empty()) {
      if (in_row_ == row_length_) {
        put(std::span(&last_id_, 1), mask.empty() ? mask : std::span<const std::uint8_t>(&last_mask_, 1));
        in_row_ = 1;
      }
      const auto count = std::min(ids.size(), static_cast<std::size_t>(row_length_ - in_row_));
      put(ids.first(count), mask.first(mask.empty() ? 0 : count));
      in_row_ += static_cast<std::int64_t>(count);
      num_ids_ += static_cast<std::int64_t>(count);
      last_id_ = ids[count - 1];
      if (!mask.empty()) last_mask_ = mask[count - 1];
      ids = ids.subspan(count);
      mask = mask.subspan(mask.empty() ? 0 : count);
    }
  }

  bool finish(const std::function<bool()>& stop_wanted) override {
    if (num_ids_ < 2)
      throw FormatError(output().file().string() + ": not written: " + std::to_string(num_ids_) +
                        " token ids in all, and 2 are needed to predict one of them");
    const auto rows = overlapping_rows(num_ids_, row_length_), length = std::min(row_length_, num_ids_);
    writing(output().file(), [&] {
      output().put_attribute("seq_len", length);
      output().put_attribute("row_overlap", std::int64_t{1});
      output().put_attribute("ids_left_out", num_ids_ - 1 - rows * (length - 1));
    });
    return write_rows(rows, length, stop_wanted);
  }

 private:
  std::int64_t row_length_;
  std::int64_t num_ids_ = 0;  ///< without those that begin a row again
  std::int64_t in_row_ = 0;   ///< ids of the last row so far
  std::int32_t last_id_ = 0;
  std::uint8_t last_mask_ = 0;
};

constexpr hsize_t kChunk_elements = 16384;

/// A 1-dimensional dataset that grows by whole chunks.
class GrowingDataset {
 public:
  GrowingDataset(const TokenFileOutput& output, const char* name, ElementType type)
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
    if (pending_.size() < kBlock_bytes) return;
    const auto chunk_bytes = kChunk_elements * type_.size_bytes;
    writing(output_.file(), [&] { write(pending_.size() / chunk_bytes * chunk_bytes); });
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
    pending_.erase(pending_.begin(), iterator_at(pending_, bytes));
  }

  const TokenFileOutput& output_;
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

  /// Starts rows: documents added from now on belong to a row until end_row().
  void begin_rows(std::int64_t seq_len) {
    rows_.emplace(make_offsets("row_offsets"));
    put(0, *rows_);
    writing(output_.file(), [&] { output_.put_attribute("seq_len", seq_len); });
  }
  void end_row() { put(num_documents_, *rows_); }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    output_.check_mask(ids, mask);
    output_.append(ids, tokens_.pending());
    num_ids_ += std::ssize(ids);
    ++num_documents_;
    put(num_ids_, offsets_);
    tokens_.grow();
    if (!mask_) return;
    const auto bytes = std::as_bytes(mask);
    mask_->pending().insert(mask_->pending().end(), bytes.begin(), bytes.end());
    mask_->grow();
  }

  bool finish(const std::function<bool()>&) override {
    writing(output_.file(), [&] {
      tokens_.finish();
      offsets_.finish();
      if (mask_) mask_->finish();
      if (rows_) rows_->finish();
      output_.commit();
    });
    return true;
  }

 private:
  // Naming an HDF5 type initialises HDF5, so these functions run inside writing().
  GrowingDataset make_tokens() const {
    return writing(output_.file(), [&] { return GrowingDataset(output_, "tokens", output_.id_type()); });
  }
  GrowingDataset make_offsets(const char* name) const {
    return writing(output_.file(), [&] {
      return GrowingDataset(output_, name,
                            {.memory = H5T_NATIVE_INT64, .stored = H5T_STD_I64LE, .size_bytes = sizeof(std::int64_t)});
    });
  }
  std::optional<GrowingDataset> make_mask() const {
    if (!output_.masked()) return {};
    return writing(output_.file(),
                   [&] { return std::optional<GrowingDataset>(std::in_place, output_, "loss_mask", mask_type()); });
  }
  static void put(std::int64_t offset, GrowingDataset& offsets) {
    auto& bytes = offsets.pending();
    bytes.resize(bytes.size() + sizeof offset);
    std::memcpy(bytes.data() + bytes.size() - sizeof offset, &offset, sizeof offset);
    offsets.grow();
  }

  TokenFileOutput output_;
  GrowingDataset tokens_;
  GrowingDataset offsets_;
  std::optional<GrowingDataset> mask_, rows_;
  std::int64_t num_ids_ = 0, num_documents_ = 0;
};

/// Values stored in a nameless file, to be read back in another order.
template <class Value>
class Spool {
 public:
  Spool(const std::filesystem::path& file, const char* what) : spool_(nameless_file(file, what)) {}

  void add(std::span<const Value> values) {
    const auto bytes = std::as_bytes(values);
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    if (pending_.size() >= kBlock_bytes) flush();
  }
  void flush() {
    spool_.write(pending_);
    pending_.clear();
  }
  /// Reads values; to be called after flush().
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
    writing(file, [&] {
      ids_.emplace(file, "ids");
      if (masked_) mask_.emplace(file, "mask");
    });
  }

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) override {
    const auto size = std::ssize(ids);
    if (size > layout_.seq_len || (masked_ ? mask.size() != ids.size() : !mask.empty()))
      throw std::invalid_argument("PackedDocumentsWriter: a document is longer than a row or its mask does not fit");
    writing(file_, [&] {
      ids_->add(ids);
      if (masked_) mask_->add(mask);
    });
    starts_.push_back(starts_.back() + size);
  }

  bool finish(const std::function<bool()>& stop_wanted) override {
    std::vector<std::int64_t> tokens;  // inputs of each document
    for (std::size_t i = 0; i + 1 < starts_.size(); ++i)
      tokens.push_back(std::max<std::int64_t>(0, starts_[i + 1] - starts_[i] - 1));
    const RowPacking packing(tokens, layout_.seq_len, {.seed = layout_.seed, .shuffle = true});
    num_rows_ = packing.num_rows();
    if (num_rows_ == 0) throw FormatError(file_.string() + ": not written: no document has 2 ids");
    writing(file_, [&] {
      ids_->flush();
      if (masked_) mask_->flush();
    });
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      if (stop_wanted && row % 1024 == 0 && stop_wanted()) return false;
      for (const auto document : packing.documents(row, 0)) copy(to_index(document));
      documents_.end_row();
    }
    return documents_.finish(stop_wanted);
  }

  std::int64_t document_rows() const override { return num_rows_; }

 private:
  void copy(std::size_t document) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(starts_[document + 1] - starts_[document]));
    std::vector<std::uint8_t> mask(masked_ ? ids.size() : 0);
    writing(file_, [&] {
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

void check_row_length(std::int64_t row_length) {
  if (row_length < 2) throw RequestError("rows of " + std::to_string(row_length) + " token ids: a row needs 2 or more");
}

}  // namespace

void check_token_output(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) throw RequestError(file.string() + ": is a directory, name a file");
  const auto folder = directory_of(seekable_output(file));
  if (!std::filesystem::is_directory(folder, error))
    throw IoError(file.string() + ": there is no directory " + folder.string() + " to write it to");
}

std::unique_ptr<TokenFileWriter> write_packed_rows(const std::filesystem::path& file, std::int64_t row_length,
                                                   const TokenFileNotes& notes) {
  check_row_length(row_length);
  return std::make_unique<PackedRowsWriter>(file, row_length, notes);
}

std::unique_ptr<TokenFileWriter> write_overlapping_rows(const std::filesystem::path& file, std::int64_t row_length,
                                                        const TokenFileNotes& notes) {
  check_row_length(row_length);
  return std::make_unique<OverlappingRowsWriter>(file, row_length, notes);
}

std::unique_ptr<TokenFileWriter> write_token_documents(const std::filesystem::path& file, const TokenFileNotes& notes) {
  return std::make_unique<DocumentsWriter>(file, notes);
}

std::unique_ptr<TokenFileWriter> write_packed_documents(const std::filesystem::path& file,
                                                        const PackedDocumentsLayout& layout,
                                                        const TokenFileNotes& notes) {
  if (layout.seq_len < 2) throw RequestError("rows of " + std::to_string(layout.seq_len) + " tokens hold no document");
  return std::make_unique<PackedDocumentsWriter>(file, layout, notes);
}

}  // namespace fsdp
