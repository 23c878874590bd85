// Megatron's indexed data sets: NAME.idx and NAME.bin.
//
// Source: megatron/core/datasets/indexed_dataset.py of megatron-core 0.19.2. The index: "MMIDIDX", two zeros; uint64
// version (1); uint8 type of the ids; uint64 sequences S; uint64 document indices E; int32 lengths [S], in ids; int64
// pointers [S], in bytes of NAME.bin; int64 document indices [E]; perhaps int8 modes [S]. Little-endian, unaligned.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/token_files/array_tokens.hpp"
#include "lib/token_files/token_file_formats.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kIndexHeaderBytes = 34;
constexpr std::uint64_t kReadAtOpening = std::uint64_t{4} << 20;  ///< bytes: an index of so many is read at once

std::filesystem::path with_suffix(std::filesystem::path file, const char* suffix) {
  return file.replace_extension(suffix);
}

struct Index {
  NumberType type;
  std::uint64_t sequences = 0;
  bool is_checked = true;            ///< false: only some sequences were read, and the others are taken to be like them
  std::vector<std::int64_t> begins;  ///< of each sequence: its first id's place in NAME.bin
  std::vector<std::int32_t> lengths;  ///< in ids
  std::int64_t first_id = 0;          ///< place in NAME.bin of the first sequence that has one
  std::int64_t ids = 0;               ///< of all sequences
  bool is_contiguous = true;          ///< each sequence begins where the one before ends
  bool has_trailing_bytes = false;    ///< NAME.bin goes on after the last sequence
};

/// Reads the index and checks all that it says about the ids.
class IndexReader {
 public:
  IndexReader(const std::filesystem::path& path, std::uint64_t bin_bytes)
      : path_(path), file_(File::open_read(path)), bin_bytes_(bin_bytes) {}

  /// The whole index. \param keep  false: without begins and lengths
  Index read(bool keep) {
    read_header();
    read_sequences(keep);
    check_documents();
    return std::move(index_);
  }

  /// An index of which only a sample was read: Megatron writes each sequence where the one before ends, so that the
  /// first and the last one tell how many ids there are. \return none for a small index, and for one whose sample says
  /// otherwise or is wrong: read() says what
  std::optional<Index> sample() {
    read_header();
    const auto count = index_.sequences;
    if (count * (sizeof(std::int32_t) + sizeof(std::int64_t)) <= kReadAtOpening) return std::nullopt;
    const auto width = static_cast<std::int64_t>(index_.type.bytes);
    const auto bin = static_cast<std::int64_t>(bin_bytes_);
    const auto is_possible = [&](const Sequence& sequence) {
      return sequence.length >= 0 && sequence.pointer >= 0 && sequence.pointer <= bin && sequence.pointer % width == 0;
    };
    const auto end_of = [&](const Sequence& sequence) { return sequence.pointer + sequence.length * width; };
    constexpr std::uint64_t kSamples = 64;
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      const auto place = (count - 2) * i / (kSamples - 1);  // of the first two sequences, ..., of the last two
      const auto here = sequence_at(place), next = sequence_at(place + 1);
      if (!is_possible(here) || !is_possible(next) || end_of(here) != next.pointer) return std::nullopt;
    }
    const auto first = sequence_at(0), last = sequence_at(count - 1);
    const auto bytes = end_of(last) - first.pointer;
    if (bytes < 0 || end_of(last) > bin) return std::nullopt;
    index_.first_id = first.pointer / width;
    index_.ids = bytes / width;
    index_.has_trailing_bytes = end_of(last) < bin;
    index_.is_checked = false;
    return std::move(index_);
  }

 private:
  struct Sequence {
    std::int64_t length;   ///< in ids
    std::int64_t pointer;  ///< in bytes of NAME.bin
  };

  [[noreturn]] void refuse(const std::string& problem) const { throw FormatError(path_.string() + ": " + problem); }

  void read_header() {
    const auto size = file_.size_bytes();
    std::array<char, kIndexHeaderBytes> header{};
    if (size < kIndexHeaderBytes)
      refuse(fmt::format("ends inside the header of Megatron's index, which has {} bytes: it has {}", kIndexHeaderBytes,
                         size));
    file_.read_at(0, std::as_writable_bytes(std::span(header)));
    if (std::memcmp(header.data(), "TNTIDX", 6) == 0)
      refuse("is Megatron's old index (TNTIDX), without memory mapping: encode the texts again");
    if (std::memcmp(header.data(), kIndexMagic.data(), kIndexMagic.size()) != 0)
      refuse("is no index of Megatron, whose first bytes are MMIDIDX and two zeros");
    std::uint64_t version = 0;
    std::memcpy(&version, header.data() + 9, sizeof(version));
    if (version != 1) refuse(fmt::format("is of version {} of Megatron's index, and 1 is known", version));
    set_type(header[17]);
    std::memcpy(&index_.sequences, header.data() + 18, sizeof(std::uint64_t));
    std::memcpy(&document_indices_, header.data() + 26, sizeof(std::uint64_t));
    const auto room = size - kIndexHeaderBytes;
    const auto sequences = index_.sequences;
    constexpr std::uint64_t kBytesOfSequence = 12, kBytesOfDocument = 8;
    const bool fits = sequences <= room / kBytesOfSequence &&
                      document_indices_ <= (room - sequences * kBytesOfSequence) / kBytesOfDocument;
    const auto rest = fits ? room - sequences * kBytesOfSequence - document_indices_ * kBytesOfDocument : 0;
    if (!fits || (rest != 0 && rest != sequences)) {
      refuse(fmt::format("its header says {} sequences and {} document indices, and {} bytes follow it", sequences,
                         document_indices_, room));
    }
    if (sequences == 0) refuse("holds no sequences");
  }

  void set_type(char code) {
    // By code; of 0 bytes: no whole numbers.
    constexpr std::array<NumberType, 9> kTypes{{{0, false, false},
                                                {1, false, false},
                                                {1, true, false},
                                                {2, true, false},
                                                {4, true, false},
                                                {8, true, false},
                                                {0, false, false},
                                                {0, false, false},
                                                {2, false, false}}};
    if (code < 1 || code >= std::ssize(kTypes))
      refuse(fmt::format("has ids of type {}, which Megatron does not know", static_cast<int>(code)));
    index_.type = kTypes[static_cast<std::size_t>(code)];
    if (index_.type.bytes == 0) refuse("has ids of a floating-point type, and ids are whole numbers");
  }

  template <class Number>
  std::vector<Number> numbers_at(std::uint64_t offset, std::uint64_t count) const {
    std::vector<Number> numbers(count);
    file_.read_at(offset, std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }
  std::uint64_t place_of_length(std::uint64_t sequence) const {
    return kIndexHeaderBytes + sequence * sizeof(std::int32_t);
  }
  std::uint64_t place_of_pointer(std::uint64_t sequence) const {
    return place_of_length(index_.sequences) + sequence * sizeof(std::int64_t);
  }
  /// \pre sequence < index_.sequences, which the header's check found to be in the file
  Sequence sequence_at(std::uint64_t sequence) const {
    return {numbers_at<std::int32_t>(place_of_length(sequence), 1).front(),
            numbers_at<std::int64_t>(place_of_pointer(sequence), 1).front()};
  }

  /// Calls body(first, count) for the blocks of `count` things.
  template <class Body>
  static void for_blocks(std::uint64_t count, const Body& body) {
    constexpr std::uint64_t kBlock = std::uint64_t{1} << 17;
    for (std::uint64_t first = 0; first < count; first += kBlock) body(first, std::min(kBlock, count - first));
  }

  void read_sequences(bool keep) {
    if (keep) {
      index_.begins.reserve(index_.sequences);
      index_.lengths.reserve(index_.sequences);
    }
    std::int64_t end = -1, last_end = 0;  // in NAME.bin: of the sequence before, and of all
    for_blocks(index_.sequences, [&](std::uint64_t first, std::uint64_t count) {
      const auto lengths = numbers_at<std::int32_t>(place_of_length(first), count);
      const auto pointers = numbers_at<std::int64_t>(place_of_pointer(first), count);
      for (std::size_t i = 0; i < count; ++i) {
        check_sequence(first + i, {lengths[i], pointers[i]});
        const auto width = static_cast<std::int64_t>(index_.type.bytes);
        if (lengths[i] > 0) {
          if (end < 0) index_.first_id = pointers[i] / width;
          index_.is_contiguous = index_.is_contiguous && (end < 0 || pointers[i] == end);
          end = pointers[i] + lengths[i] * width;
          last_end = std::max(last_end, end);
        }
        index_.ids += lengths[i];
        if (!keep) continue;
        index_.lengths.push_back(lengths[i]);
        index_.begins.push_back(pointers[i] / width);
      }
    });
    index_.has_trailing_bytes = last_end < static_cast<std::int64_t>(bin_bytes_);
  }

  void check_sequence(std::uint64_t number, const Sequence& sequence) const {
    const auto [length, pointer] = sequence;
    const auto width = static_cast<std::int64_t>(index_.type.bytes);
    const auto bin = static_cast<std::int64_t>(bin_bytes_);
    if (length < 0) refuse(fmt::format("sequence {} has {} ids", number, length));
    const auto place = [&] { return fmt::format("sequence {} begins at byte {}", number, sequence.pointer); };
    if (pointer < 0) refuse(place());
    if (pointer % width != 0) refuse(place() + fmt::format(", inside an id of {} bytes", width));
    if (length > 0 && (pointer > bin || length > (bin - pointer) / width)) {
      refuse(place() + fmt::format(" with {} ids of {} bytes, and {} has {} bytes", length, width,
                                   with_suffix(path_, ".bin").filename().string(), bin));
    }
  }

  void check_documents() const {
    if (document_indices_ == 0)
      refuse("has no document indices: the first one is 0, the last one the number of sequences");
    std::int64_t last = 0;
    for_blocks(document_indices_, [&](std::uint64_t first, std::uint64_t count) {
      const auto offset = place_of_pointer(index_.sequences) + first * sizeof(std::int64_t);
      for (auto place = first; const auto sequence : numbers_at<std::int64_t>(offset, count)) {
        if (place == 0 && sequence != 0)
          refuse(fmt::format("its first document begins at sequence {} instead of 0", sequence));
        if (sequence < last)
          refuse(fmt::format("document {} begins at sequence {}, before document {} at {}", place, sequence, place - 1,
                             last));
        last = sequence;
        ++place;
      }
    });
    if (last != static_cast<std::int64_t>(index_.sequences))
      refuse(fmt::format("its last document ends at sequence {}, and there are {}", last, index_.sequences));
  }

  std::filesystem::path path_;
  File file_;
  std::uint64_t bin_bytes_;
  std::uint64_t document_indices_ = 0;
  Index index_;
};

/// Sequences as documents, or all joined to a stream and cut into rows, as Megatron's GPT training reads them.
class MegatronTokens final : public TokenFile {
 public:
  MegatronTokens(const std::filesystem::path& bin, std::shared_ptr<const File> file, Index index, std::int64_t inputs)
      : TokenFile(bin),
        ids_(std::move(file), 0, ids_in(bin, index.type), index.type),
        index_(std::move(index)),
        inputs_(inputs) {
    if (inputs_ == 0) return;
    require_pair(bin, index_.ids);
    rows_ = stream_rows(index_.ids, inputs_);
    if (index_.is_contiguous) {
      index_.begins = {};
      index_.lengths = {};
      return;
    }
    std::int64_t before = 0;
    for (const auto length : index_.lengths) {
      stream_begins_.push_back(before);
      before += length;
    }
  }

  std::int64_t num_records() const override {
    return inputs_ == 0 ? static_cast<std::int64_t>(index_.sequences) : rows_.count;
  }
  std::int64_t row_length() const override { return inputs_ == 0 ? 0 : rows_.length; }
  std::int64_t length(std::int64_t record) const override {
    return inputs_ == 0 ? index_.lengths[static_cast<std::size_t>(record)] : rows_.length;
  }
  void read(std::int64_t record, std::span<std::int32_t> out) const override {
    check_part(record, out.size());
    inputs_ == 0 ? read_sequence(static_cast<std::size_t>(record), 0, out) : read_stream(record * inputs_, out);
    check_unchanged();
  }
  TokenFileNotes notes() const override {
    TokenFileNotes notes;
    notes.overlaps = inputs_ > 0;
    notes.left_out = inputs_ > 0 ? rows_.left_out : 0;
    return notes;
  }
  std::vector<std::string> remarks() const override {
    if (!index_.has_trailing_bytes) return {};
    return {"has bytes after the last sequence of its index, which are not read"};
  }
  std::vector<std::filesystem::path> files() const override { return {file(), with_suffix(file(), ".idx")}; }
  void check() const override {
    if (index_.is_checked) return;
    const auto idx = with_suffix(file(), ".idx");
    const auto whole = IndexReader(idx, std::filesystem::file_size(file())).read(false);
    if (!whole.is_contiguous || whole.first_id != index_.first_id || whole.ids != index_.ids)
      throw FormatError(idx.string() +
                        ": its sequences do not follow each other in the file of ids, as those of so large an index "
                        "must: merge the files again with Megatron's tools");
  }

 private:
  void read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const override {
    read_rows_of_stream(count, inputs_, out, [&](std::span<std::int32_t> ids) { read_stream(first * inputs_, ids); });
    check_unchanged();
  }

  static std::int64_t ids_in(const std::filesystem::path& bin, const NumberType& type) {
    return static_cast<std::int64_t>(std::filesystem::file_size(bin)) / type.bytes;
  }

  void read_sequence(std::size_t sequence, std::int64_t first, std::span<std::int32_t> out) const {
    if (!out.empty()) ids_.read(index_.begins[sequence] + first, out);
  }

  /// Reads ids of the joined sequences. \param first  in the stream
  void read_stream(std::int64_t first, std::span<std::int32_t> out) const {
    if (index_.is_contiguous) return ids_.read(index_.first_id + first, out);
    auto sequence =
        static_cast<std::size_t>(std::ranges::upper_bound(stream_begins_, first) - stream_begins_.begin() - 1);
    for (std::size_t done = 0; done < out.size(); ++sequence) {
      const auto skipped = first + static_cast<std::int64_t>(done) - stream_begins_[sequence];
      const auto left = index_.lengths[sequence] - skipped;
      if (left <= 0) continue;
      const auto part = out.subspan(done, std::min(static_cast<std::size_t>(left), out.size() - done));
      read_sequence(sequence, skipped, part);
      done += part.size();
    }
  }

  IdArray ids_;
  Index index_;
  std::int64_t inputs_;
  StreamRows rows_{0, 0, 0};
  std::vector<std::int64_t> stream_begins_;  ///< of each sequence, where they are not contiguous
};

}  // namespace

bool is_megatron(const std::filesystem::path& file, std::string_view head) {
  if (head.starts_with(kIndexMagic) || file.extension() == ".idx") return true;
  std::error_code error;
  return file.extension() == ".bin" && std::filesystem::is_regular_file(with_suffix(file, ".idx"), error);
}

std::unique_ptr<TokenFile> open_megatron_tokens(const std::filesystem::path& file, const TokenFileOptions& options) {
  const auto bin = with_suffix(file, ".bin"), idx = with_suffix(file, ".idx");
  std::error_code error;
  if (!std::filesystem::exists(bin, error))
    throw FormatError(idx.string() + ": " + bin.filename().string() + " with its ids is not beside it");
  auto ids = std::make_shared<const File>(File::open_read(bin));
  const auto inputs = options.documents ? 0 : options.stream_inputs;
  IndexReader reader(idx, ids->size_bytes());
  std::optional<Index> index;
  if (options.checked_later && inputs > 0) index = reader.sample();
  if (!index) index = IndexReader(idx, ids->size_bytes()).read(true);
  return std::make_unique<MegatronTokens>(bin, std::move(ids), std::move(*index), inputs);
}

}  // namespace fsdp
