// Token files in HDF5.
//
// Rows: dataset `input_ids` [rows, L] of any integer type, one packed sample per row.
// Documents: datasets `tokens` [total] of any integer type and `offsets` int64 [documents + 1], document i being
// tokens[offsets[i], offsets[i + 1]). Empty documents are kept. `row_offsets` int64 [rows + 1] is there where documents
// share rows: row r is documents [row_offsets[r], row_offsets[r + 1]). Only the offsets are in memory.
// A stream: `tokens` without `offsets`, cut into rows as token files of llm.c are.
// Each may have `loss_mask` of the shape of the ids: 1 where an id counts as a target, 0 where it is only read (a
// prompt). Notes are attributes of the root group.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/formats/hdf5/hdf5.hpp"
#include "lib/formats/hdf5/hdf5_storage.hpp"
#include "lib/token_files/array_tokens.hpp"
#include "lib/token_files/token_file_formats.hpp"

namespace fsdp {

namespace {

using namespace detail;

constexpr std::string_view kHdf5Signature("\x89HDF\r\n\x1a\n", 8);
constexpr const char* kInputIds = "input_ids";
constexpr const char* kTokens = "tokens";
constexpr const char* kOffsets = "offsets";
constexpr const char* kRowOffsets = "row_offsets";

/// The dataset of ids. Call inside an Hdf5Scope, closing included.
struct IdDataset {
  Hdf5Dataset dataset;
  ChunkSizes chunks;
  bool fits_int32 = false;  ///< every value of the stored type is an id in [0, 2^31)
};

/// Reads a block of ids.
/// \param start, count  of the block, as for H5Sselect_hyperslab; each count > 0
/// \param what          the action, for HDF5's errors: "read row 3"
/// \param describe_position      names element i of the block: "row 3, position 4"
template <class DescribePosition>
void read_ids(const IdDataset& ids, const std::filesystem::path& file, std::span<const hsize_t> start,
              std::span<const hsize_t> count, const std::string& what, std::span<std::int32_t> out,
              const DescribePosition& describe_position) {
  // Wider types go through 64 bits: HDF5 would clip what does not fit instead of failing.
  std::vector<std::int64_t> wide(ids.fits_int32 ? 0 : out.size());
  {
    const Hdf5Scope scope;
    ids.chunks.check(ids.dataset, file, start, count);
    const Hdf5Space stored(check_hdf5(H5Dget_space(ids.dataset.get()), file, what));
    const Hdf5Space memory(
        check_hdf5(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), file, what));
    check_hdf5(H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr), file,
               what);
    void* target = ids.fits_int32 ? static_cast<void*>(out.data()) : wide.data();
    const hid_t type = ids.fits_int32 ? H5T_NATIVE_INT32 : H5T_NATIVE_INT64;
    check_hdf5(H5Dread(ids.dataset.get(), type, memory.get(), stored.get(), H5P_DEFAULT, target), file, what);
  }
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (wide[i] < 0 || wide[i] > std::numeric_limits<std::int32_t>::max())
      throw FormatError(file.string() + ": " + describe_position(static_cast<std::int64_t>(i)) + ": token id " +
                        std::to_string(wide[i]) + " is not in [0, 2147483648)");
    out[i] = static_cast<std::int32_t>(wide[i]);
  }
}

/// The dataset `loss_mask`, read on demand. Call inside an Hdf5Scope, closing included.
class LossMask {
 public:
  /// \return nothing where the file has no `loss_mask`
  /// \param shape  of the ids
  /// \throws FormatError naming file and dataset when the mask has another shape or other elements than integers or
  /// truth values
  static std::optional<LossMask> find(const Hdf5File& handle, const std::filesystem::path& file,
                                      std::span<const hsize_t> shape);

  /// Reads a block, row-major.
  /// \param start, count  of the block, as for H5Sselect_hyperslab; each count > 0
  /// \throws FormatError naming file and position of a value that is neither 0 nor 1
  void read(const std::filesystem::path& file, std::span<const hsize_t> start, std::span<const hsize_t> count,
            std::span<std::uint8_t> out) const;

 private:
  Hdf5Dataset dataset_;
  ChunkSizes chunks_;
  bool truth_values_ = false;  ///< stored as one byte each, as in memory
};

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

using Hdf5Attribute = UniqueHid<H5Aclose>;

/// Opens a scalar attribute of the root group. \return a handle that is not open when there is none
Hdf5Attribute open_scalar(const Hdf5File& handle, const char* name) {
  if (H5Aexists(handle.get(), name) <= 0) return {};
  Hdf5Attribute attribute(H5Aopen(handle.get(), name, H5P_DEFAULT));
  if (attribute.get() < 0) return {};
  const Hdf5Space space(H5Aget_space(attribute.get()));
  if (space.get() < 0 || H5Sget_simple_extent_npoints(space.get()) != 1) return {};
  return attribute;
}

std::string text_attribute(const Hdf5File& handle, const char* name) {
  const auto attribute = open_scalar(handle, name);
  if (attribute.get() < 0) return {};
  const Hdf5Type stored(H5Aget_type(attribute.get()));
  // Text is a variable-length string, as the writers here and h5py store it. Attributes lie in the metadata of the
  // file, which bounds their size.
  if (stored.get() < 0 || H5Tget_class(stored.get()) != H5T_STRING || H5Tis_variable_str(stored.get()) <= 0) return {};
  char* text = nullptr;
  if (H5Aread(attribute.get(), stored.get(), static_cast<void*>(&text)) < 0 || text == nullptr) return {};
  std::string copy = text;
  H5free_memory(text);
  return copy;
}

std::int64_t integer_attribute(const Hdf5File& handle, const char* name) {
  const auto attribute = open_scalar(handle, name);
  if (attribute.get() < 0) return 0;
  const Hdf5Type stored(H5Aget_type(attribute.get()));
  std::int64_t value = 0;
  if (stored.get() < 0 || H5Tget_class(stored.get()) != H5T_INTEGER) return 0;
  return H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0 ? 0 : value;
}

/// \param text  a list in JSON \return none for another text
std::vector<std::string> labels_of(const std::string& text) {
  const auto list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> labels;
  for (const auto& label : list.is_array() ? list : nlohmann::json::array()) {
    if (!label.is_string()) return {};
    labels.push_back(label.get<std::string>());
  }
  return labels;
}

/// The parts that readers of rows and of documents share.
class Hdf5TokenFile : public TokenFile {
 public:
  bool has_loss_mask() const override { return loss_mask_.has_value(); }

  TokenFileNotes notes() const override {
    const Hdf5Scope scope;
    TokenFileNotes notes;
    notes.tokenizer = text_attribute(handle_, "tokenizer");
    notes.tokenizer_description = text_attribute(handle_, "tokenizer_description");
    notes.vocab_size = integer_attribute(handle_, "vocab_size");
    notes.chat_template = text_attribute(handle_, "chat_template");
    notes.train_on = text_attribute(handle_, "train_on");
    notes.has_preferences = integer_attribute(handle_, "preferences") == 1;
    notes.judged = integer_attribute(handle_, "judged") == 1;
    notes.head = text_attribute(handle_, "head");
    notes.labels = labels_of(text_attribute(handle_, "labels"));
    if (!notes.head.empty()) notes.padding_id = integer_attribute(handle_, "pad_token_id");
    notes.overlaps = integer_attribute(handle_, "row_overlap") == 1;
    notes.left_out = integer_attribute(handle_, "ids_left_out");
    return notes;
  }

  std::vector<std::string> unread() const override {
    const Hdf5Scope scope;
    std::vector<std::string> found;
    if (has_dataset(handle_, kLossMask)) return found;  // loss_mask replaces them
    for (const auto* name : {"labels", "attention_mask", "completion_mask", "assistant_masks", "position_ids"}) {
      if (has_dataset(handle_, name)) found.emplace_back(name);
    }
    return found;
  }

 protected:
  Hdf5TokenFile(const std::filesystem::path& file, Hdf5File handle) : TokenFile(file), handle_(std::move(handle)) {}

  Hdf5File handle_;
  IdDataset ids_;
  std::optional<LossMask> loss_mask_;
};

class Hdf5Rows final : public Hdf5TokenFile {
 public:
  /// Call inside an Hdf5Scope. \throws FormatError
  Hdf5Rows(const std::filesystem::path& path, Hdf5File handle) : Hdf5TokenFile(path, std::move(handle)) {
    ids_.dataset = open_dataset(handle_, path, kInputIds);
    std::string found;
    const auto type = integer_type(ids_.dataset, path, kInputIds, found);
    if (type.size_bytes == 0) refuse(found);
    ids_.fits_int32 = type.fits_int32;
    const auto shape = dataset_shape(ids_.dataset, path, kInputIds);
    check_shape(shape);
    check_stored(ids_.dataset, path, kInputIds);
    ids_.chunks = ChunkSizes(ids_.dataset, path);
    num_rows_ = static_cast<std::int64_t>(shape[0]);
    row_length_ = static_cast<std::int64_t>(shape[1]);
    loss_mask_ = LossMask::find(handle_, path, shape);
  }

  std::int64_t num_records() const override { return num_rows_; }
  std::int64_t row_length() const override { return row_length_; }
  std::int64_t length(std::int64_t) const override { return row_length_; }

  void read(std::int64_t row, std::span<std::int32_t> out) const override {
    check_part(row, out.size());
    if (out.empty()) return;
    read_block(row, 1, out);
    check_unchanged();
  }

  void read_loss_mask(std::int64_t row, std::span<std::uint8_t> out) const override {
    if (!loss_mask_) return TokenFile::read_loss_mask(row, out);
    check_part(row, out.size());
    if (out.empty()) return;
    const Hdf5Scope scope;
    const std::array<hsize_t, 2> start{static_cast<hsize_t>(row), 0}, count{1, out.size()};
    loss_mask_->read(file(), start, count, out);
    check_unchanged();
  }

 private:
  void read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const override {
    read_block(first, count, out);
    check_unchanged();
  }

  [[noreturn]] void refuse(const std::string& found) const {
    throw FormatError(file().string() + ": " + found +
                      ", expected a 2-dimensional integer dataset 'input_ids' [rows, ids per row] (uint16 or uint32)");
  }

  void check_shape(const std::vector<hsize_t>& shape) const {
    if (shape.size() != 2) refuse("dataset 'input_ids' has " + std::to_string(shape.size()) + " dimensions");
    const auto text = "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + "]";
    if (shape[0] == 0) refuse("dataset 'input_ids' of shape " + text + " has no rows");
    if (shape[1] < 2)
      throw FormatError(file().string() + ": dataset 'input_ids' of shape " + text +
                        " has rows too short to predict a next id, expected 2 ids per row or more");
    if (shape[0] > (hsize_t{1} << 62) / shape[1]) refuse("dataset 'input_ids' claims the impossible shape " + text);
  }

  void read_block(std::int64_t first_row, std::int64_t rows, std::span<std::int32_t> out) const {
    const auto width = std::ssize(out) / rows;
    const std::array<hsize_t, 2> start{static_cast<hsize_t>(first_row), 0};
    const std::array<hsize_t, 2> count{static_cast<hsize_t>(rows), static_cast<hsize_t>(width)};
    read_ids(ids_, file(), start, count, "read row " + std::to_string(first_row) + " of 'input_ids'", out,
             [&](std::int64_t i) {
               return "row " + std::to_string(first_row + i / width) + ", position " + std::to_string(i % width);
             });
  }

  std::int64_t num_rows_ = 0;
  std::int64_t row_length_ = 0;
};

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& found) {
  throw FormatError(file.string() + ": " + found +
                    ", expected 1-dimensional integer datasets 'tokens' [tokens] (uint16 or uint32) and 'offsets' "
                    "[documents + 1] (int64)");
}

struct Vector {
  Hdf5Dataset dataset;
  std::uint64_t length;
  IntegerType type;
};

Vector open_vector(const Hdf5File& handle, const std::filesystem::path& file, const char* name) {
  Vector found{.dataset = open_dataset(handle, file, name), .length = 0, .type = {}};
  std::string what;
  found.type = integer_type(found.dataset, file, name, what);
  if (found.type.size_bytes == 0) refuse(file, what);
  const auto shape = dataset_shape(found.dataset, file, name);
  if (shape.size() != 1) {
    refuse(file, "dataset '" + std::string(name) + "' has " + std::to_string(shape.size()) + " dimensions");
  }
  found.length = shape[0];
  check_stored(found.dataset, file, name);
  if (!plausible_size(found.dataset, file, found.length, found.type.size_bytes)) {
    throw FormatError(file.string() + ": dataset '" + name + "' claims " + std::to_string(found.length) +
                      " elements, more than the file holds; it is damaged or was not written to its end");
  }
  return found;
}

/// Reads offsets and checks them.
/// \param end      expected value of the last offset
/// \param counted  noun for what `end` counts
std::vector<std::int64_t> read_offsets(const Vector& offsets, const char* name, std::uint64_t end, const char* counted,
                                       const std::filesystem::path& file) {
  if (offsets.length == 0) refuse(file, "dataset '" + std::string(name) + "' is empty");
  const hsize_t start = 0, count = offsets.length;
  ChunkSizes(offsets.dataset, file).check(offsets.dataset, file, {&start, 1}, {&count, 1});
  std::vector<std::int64_t> values(offsets.length);
  check_hdf5(H5Dread(offsets.dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), file,
             "read '" + std::string(name) + "'");
  const auto wrong = [&](std::size_t i, const std::string& expected) {
    throw FormatError(file.string() + ": " + name + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                      ", expected " + expected);
  };
  if (values.front() != 0) wrong(0, "0");
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) wrong(i, std::to_string(values[i - 1]) + " or more, the offset before it");
  }
  if (static_cast<std::uint64_t>(values.back()) != end) {
    wrong(values.size() - 1, std::to_string(end) + ", the number of " + counted);
  }
  return values;
}

/// Records that are ranges of the one-dimensional dataset `tokens`.
class Hdf5Ranges : public Hdf5TokenFile {
 public:
  void read(std::int64_t record, std::span<std::int32_t> out) const override {
    check_part(record, out.size());
    if (out.empty()) return;
    const hsize_t start = first_token(record), count = out.size();
    read_ids(ids_, file(), {&start, 1}, {&count, 1}, "read " + part_name(record), out,
             [&](std::int64_t i) { return position_name(record, i); });
    check_unchanged();
  }

  void read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const override {
    if (!loss_mask_) return TokenFile::read_loss_mask(record, out);
    check_part(record, out.size());
    if (out.empty()) return;
    const Hdf5Scope scope;
    const hsize_t start = first_token(record), count = out.size();
    loss_mask_->read(file(), {&start, 1}, {&count, 1}, out);
    check_unchanged();
  }

 protected:
  /// Call inside an Hdf5Scope. \throws FormatError
  Hdf5Ranges(const std::filesystem::path& path, Hdf5File handle) : Hdf5TokenFile(path, std::move(handle)) {
    auto tokens = open_vector(handle_, path, kTokens);
    num_tokens_ = tokens.length;
    ids_.dataset = std::move(tokens.dataset);
    ids_.chunks = ChunkSizes(ids_.dataset, path);
    ids_.fits_int32 = tokens.type.fits_int32;
    loss_mask_ = LossMask::find(handle_, path, {&num_tokens_, 1});
  }

  virtual hsize_t first_token(std::int64_t record) const = 0;
  /// For messages: "document 3", and of one of its ids "document 3, position 5".
  virtual std::string part_name(std::int64_t record) const = 0;
  virtual std::string position_name(std::int64_t record, std::int64_t i) const = 0;

  hsize_t num_tokens_ = 0;
};

class Hdf5Documents final : public Hdf5Ranges {
 public:
  /// Call inside an Hdf5Scope. \throws FormatError
  Hdf5Documents(const std::filesystem::path& path, Hdf5File handle) : Hdf5Ranges(path, std::move(handle)) {
    const auto offsets = open_vector(handle_, path, kOffsets);
    offsets_ = read_offsets(offsets, kOffsets, num_tokens_, "tokens", path);
    if (!has_dataset(handle_, kRowOffsets)) return;
    const auto rows = open_vector(handle_, path, kRowOffsets);
    row_offsets_ = read_offsets(rows, kRowOffsets, offsets_.size() - 1, "documents", path);
  }

  std::int64_t num_records() const override { return std::ssize(offsets_) - 1; }
  std::int64_t length(std::int64_t document) const override {
    const auto i = to_index(document);
    return offsets_[i + 1] - offsets_[i];
  }

  std::int64_t num_shared_rows() const override { return row_offsets_.empty() ? 0 : std::ssize(row_offsets_) - 1; }
  std::int64_t shared_row_begin(std::int64_t row) const override { return element(row_offsets_, row); }

 protected:
  hsize_t first_token(std::int64_t document) const override {
    return static_cast<hsize_t>(element(offsets_, document));
  }
  std::string part_name(std::int64_t document) const override { return "document " + std::to_string(document); }
  std::string position_name(std::int64_t document, std::int64_t i) const override {
    return part_name(document) + ", position " + std::to_string(i);
  }

 private:
  std::vector<std::int64_t> offsets_, row_offsets_;
};

/// One stream, in rows of which each begins with the last id of the row before, or as one document.
class Hdf5Stream final : public Hdf5Ranges {
 public:
  /// Call inside an Hdf5Scope. \param inputs  of a row; 0: all is one document. \throws FormatError
  Hdf5Stream(const std::filesystem::path& path, Hdf5File handle, std::int64_t inputs)
      : Hdf5Ranges(path, std::move(handle)), is_document_(inputs == 0) {
    const auto count = static_cast<std::int64_t>(num_tokens_);
    require_pair(path, count);
    rows_ = is_document_ ? StreamRows{1, count, 0} : stream_rows(count, inputs);
  }

  std::int64_t num_records() const override { return rows_.count; }
  std::int64_t row_length() const override { return is_document_ ? 0 : rows_.length; }
  std::int64_t length(std::int64_t) const override { return rows_.length; }

  std::vector<std::string> remarks() const override {
    const Hdf5Scope scope;
    const auto names = member_names(handle_);
    if (names == "'tokens'" || (loss_mask_ && names.find(',') == names.rfind(','))) return {};
    return {"holds " + names +
            ", of which 'tokens' is read as one stream: where documents end is told by 'offsets' alone"};
  }

  TokenFileNotes notes() const override {
    auto notes = Hdf5TokenFile::notes();
    notes.overlaps = !is_document_;
    notes.left_out = rows_.left_out;
    return notes;
  }

 protected:
  hsize_t first_token(std::int64_t row) const override { return static_cast<hsize_t>(row * (rows_.length - 1)); }
  std::string part_name(std::int64_t row) const override {
    return "'tokens' from " + std::to_string(first_token(row)) + " on";
  }
  std::string position_name(std::int64_t row, std::int64_t i) const override {
    return "position " + std::to_string(static_cast<std::int64_t>(first_token(row)) + i);
  }

 private:
  bool is_document_;
  StreamRows rows_{};
};

}  // namespace

bool is_hdf5_tokens(const std::filesystem::path& file, std::string_view head) {
  const auto suffix = file.extension();
  return suffix == ".h5" || suffix == ".hdf5" || head.starts_with(kHdf5Signature);
}

std::unique_ptr<TokenFile> open_hdf5_tokens(const std::filesystem::path& file, const TokenFileOptions& options) {
  const Hdf5Scope scope;
  auto handle = open_hdf5_read(file);
  if (has_dataset(handle, kInputIds)) return std::make_unique<Hdf5Rows>(file, std::move(handle));
  if (has_dataset(handle, kTokens) && has_dataset(handle, kOffsets))
    return std::make_unique<Hdf5Documents>(file, std::move(handle));
  if (has_dataset(handle, kTokens)) return std::make_unique<Hdf5Stream>(file, std::move(handle), options.stream_inputs);
  const auto names = member_names(handle);
  throw FormatError(
      file.string() + ": holds " + (names.empty() ? "nothing" : names) +
      ", expected a dataset 'input_ids' (packed rows) or 'tokens' with 'offsets' (documents) or without (a stream)");
}

}  // namespace fsdp
