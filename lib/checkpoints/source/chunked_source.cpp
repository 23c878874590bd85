#include "lib/checkpoints/source/chunked_source.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {

namespace {

/// The first number below `count` for which `holds` is true, or `count` when there is none; `holds` must be true for
/// all numbers after that.
template <typename Holds>
std::uint64_t first_that(std::uint64_t count, Holds&& holds) {
  std::uint64_t low = 0, high = count;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

constexpr std::uint64_t kDirectBytes = 64u << 10;  // shorter runs are read together into a buffer
constexpr std::uint64_t kBufferBytes = 512u << 10;
constexpr std::uint64_t kSmallStorageBytes = 16u << 20;  // cheap enough to be read again when only slices were read

/// Combines the CRC-32 of bytes [0, size) from pieces; returns nothing when the pieces do not cover the bytes. `sums`
/// are of one storage.
std::optional<std::uint32_t> put_together(std::span<const ReadSum> sums, std::uint64_t size_bytes) {
  std::map<std::uint64_t, std::uint32_t> reached{{0, 0}};  // CRC-32 up to the key; pieces may overlap (tied tensors)
  for (const auto& sum : sums) {
    const auto before = reached.find(sum.begin);
    if (before == reached.end() || sum.end <= sum.begin || reached.contains(sum.end)) continue;
    reached.emplace(sum.end, crc32_combine(before->second, sum.crc32, sum.end - sum.begin));
  }
  const auto found = reached.find(size_bytes);
  return found != reached.end() ? std::optional(found->second) : std::nullopt;
}

/// True when the same bytes were read twice with different content. `sums` are of one storage, in order.
bool differ_somewhere(std::span<const ReadSum> sums) {
  return std::adjacent_find(sums.begin(), sums.end(), [](const ReadSum& a, const ReadSum& b) {
           return a.begin == b.begin && a.end == b.end && a.crc32 != b.crc32;
         }) != sums.end();
}

std::uint32_t sum_of_file(const std::string& path, std::uint64_t begin_bytes, std::uint64_t size_bytes) {
  const File file = File::open_read(path);
  std::vector<std::byte> buffer(std::min(size_bytes, kBufferBytes));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < size_bytes; done += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size_bytes - done));
    file.read_at(begin_bytes + done, piece);
    crc = crc32(crc, piece);
  }
  return crc;
}

}  // namespace

ChunkRuns::ChunkRuns(const Block& block, const Shape& shape) : block_(block), strides_(shape.size()) {
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0; stride *= shape[dim]) strides_[dim] = stride;
  std::size_t dim = shape.size();
  while (dim > 0) {
    --dim;
    run_length_ *= block.sizes[dim];
    if (block.sizes[dim] != shape[dim]) break;
  }
  num_outer_ = dim;
  for (std::size_t outer = 0; outer < num_outer_; ++outer) num_runs_ *= block.sizes[outer];
}

std::uint64_t ChunkRuns::place(std::uint64_t run) const {
  std::uint64_t at = 0;
  for (std::size_t dim = 0; dim < strides_.size(); ++dim) {
    at += static_cast<std::uint64_t>(block_.offsets[dim]) * static_cast<std::uint64_t>(strides_[dim]);
  }
  for (std::size_t dim = num_outer_; dim-- > 0;) {
    const std::uint64_t size = block_.sizes[dim];
    at += run % size * static_cast<std::uint64_t>(strides_[dim]);
    run /= size;
  }
  return at;
}

std::uint64_t ChunkRuns::first_reaching(std::uint64_t element) const {
  return first_that(num_runs_, [&](std::uint64_t run) { return place(run) + run_length_ > element; });
}

std::uint64_t ChunkRuns::first_from(std::uint64_t element) const {
  return first_that(num_runs_, [&](std::uint64_t run) { return place(run) >= element; });
}

constexpr std::size_t kMaxOpenFiles = 128;

std::uint32_t FileSet::add(std::filesystem::path path) {
  paths_.push_back(std::move(path));
  open_.emplace_back();
  return static_cast<std::uint32_t>(paths_.size() - 1);
}

std::shared_ptr<const File> FileSet::open(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  auto& file = open_.at(number);
  if (file != nullptr) return file;
  if (order_.size() >= kMaxOpenFiles) {
    open_[order_.front()].reset();
    order_.pop_front();
  }
  file = std::make_shared<const File>(File::open_read(paths_[number]));
  order_.push_back(number);
  return file;
}

namespace detail {

/// The CRC-32 of the output, as far as it is known.
class OutputSum {
 public:
  explicit OutputSum(std::uint64_t size_bytes) : left_bytes_(size_bytes) {}
  void add(std::uint64_t begin_bytes, std::uint64_t length_bytes, std::optional<std::uint32_t> crc) {
    if (!crc) return;
    left_bytes_ -= length_bytes;
    parts_[begin_bytes] = {length_bytes, *crc};
  }
  std::optional<std::uint32_t> whole() const {
    if (left_bytes_ != 0 || parts_.empty()) return std::nullopt;
    std::uint32_t crc = 0;
    for (const auto& [begin, part] : parts_) crc = crc32_combine(crc, part.crc32, part.length_bytes);
    return crc;
  }

 private:
  struct Part {
    std::uint64_t length_bytes;
    std::uint32_t crc32;
  };
  std::uint64_t left_bytes_;
  std::map<std::uint64_t, Part> parts_;
};

}  // namespace detail

/// Fills the output of one read from chunk after chunk.
class ChunkedSource::RangeReader {
 public:
  RangeReader(const ChunkedSource& source, const SourceTensor& tensor, std::uint64_t first, std::span<std::byte> out,
              std::vector<ReadSum>* sums)
      : source_(source),
        tensor_(tensor),
        element_bytes_(dtype_size_bytes(tensor.dtype)),
        first_(first),
        end_(first + out.size() / element_bytes_),
        out_(out),
        sums_(sums),
        output_sum_(out.size()) {}

  void take_from(ChunkNumber chunk) {
    if (num_elements(source_.block(chunk).sizes) == 0) return;
    const ChunkRuns runs(source_.block(chunk), tensor_.shape);
    const std::uint64_t run_begin = runs.first_reaching(first_), run_end = runs.first_from(end_);
    if (run_begin >= run_end) return;
    const bool whole = source_.chunk_prefers_whole(chunk);
    if (run_end - run_begin == 1 || (!whole && runs.run_length() * element_bytes_ >= kDirectBytes)) {
      for (std::uint64_t run = run_begin; run < run_end; ++run) take_run(chunk, runs, run);
    } else {
      take_together(chunk, runs, run_begin, run_end, whole);
    }
  }
  std::optional<std::uint32_t> crc32() const { return output_sum_.whole(); }

 private:
  /// The wanted part of a run: its start in the tensor and in the chunk, and its length.
  struct Part {
    std::uint64_t place, in_chunk, length;
  };
  Part part_of(const ChunkRuns& runs, std::uint64_t run) const {
    const std::uint64_t place = runs.place(run), begin = std::max(place, first_);
    return {.place = begin,
            .in_chunk = run * runs.run_length() + (begin - place),
            .length = std::min(place + runs.run_length(), end_) - begin};
  }
  std::span<std::byte> room(std::uint64_t place, std::uint64_t length) const {
    return out_.subspan((place - first_) * element_bytes_, length * element_bytes_);
  }

  void take_run(ChunkNumber chunk, const ChunkRuns& runs, std::uint64_t run) {
    const Part part = part_of(runs, run);
    const auto to = room(part.place, part.length);
    const auto crc = source_.read_chunk(chunk, part.in_chunk, part.length, to, sums_);
    output_sum_.add(static_cast<std::uint64_t>(to.data() - out_.data()), to.size(), crc);
  }

  /// Reads the wanted elements in the order of the chunk and then copies them to their places in the output.
  void take_together(ChunkNumber chunk, const ChunkRuns& runs, std::uint64_t run, std::uint64_t run_end, bool whole) {
    const Part last = part_of(runs, run_end - 1);
    const std::uint64_t end = last.in_chunk + last.length;
    std::uint64_t at = part_of(runs, run).in_chunk;
    const std::uint64_t step = whole ? end - at : kBufferBytes / element_bytes_;
    while (at < end) {
      const std::uint64_t length = std::min(step, end - at);
      buffer_.resize(std::max<std::size_t>(buffer_.size(), length * element_bytes_));
      const auto read = std::span(buffer_).first(length * element_bytes_);
      source_.read_chunk(chunk, at, length, read, sums_);
      for (; run < run_end; ++run) {
        const Part part = part_of(runs, run);
        if (part.in_chunk >= at + length) break;
        const std::uint64_t begin = std::max(part.in_chunk, at);
        const std::uint64_t count = std::min(part.in_chunk + part.length, at + length) - begin;
        std::memcpy(room(part.place + (begin - part.in_chunk), count).data(),
                    read.data() + (begin - at) * element_bytes_, count * element_bytes_);
        if (part.in_chunk + part.length > at + length) break;  // the next piece brings the rest
      }
      at += length;
    }
  }

  const ChunkedSource& source_;
  const SourceTensor& tensor_;
  std::uint64_t element_bytes_, first_, end_;
  std::span<std::byte> out_;
  std::vector<ReadSum>* sums_;
  std::vector<std::byte> buffer_;
  detail::OutputSum output_sum_;
};

void ChunkedSource::add_tensor(SourceTensor tensor, std::vector<Block> blocks, const std::string& file) {
  std::vector<Block> filled;
  for (const auto& block : blocks) {
    if (num_elements(block.sizes) > 0) filled.push_back(block);
  }
  tensor.size_bytes();  // throws when the number overflows
  if (const auto problem = detail::tiling_problem(std::move(filled), num_elements(tensor.shape))) {
    throw FormatError(file + ": tensor \"" + tensor.name + "\": " + *problem + "; a rank's part may be missing");
  }
  for (auto& block : blocks) blocks_.push_back(std::move(block));
  first_chunk_.push_back(blocks_.size());
  tensors_.push_back(std::move(tensor));
}

void ChunkedSource::check_names(const std::string& file) const {
  std::unordered_set<std::string_view> names;
  const auto check = [&](const std::string& name) {
    if (!names.insert(name).second) throw FormatError(file + ": two entries are called \"" + name + "\"");
  };
  for (const auto& tensor : tensors_) check(tensor.name);
  for (const auto& value : values_) check(value.name);
}

bool ChunkedSource::prefers_whole(std::size_t tensor) const {
  for (std::size_t chunk = first_chunk_.at(tensor); chunk < first_chunk_.at(tensor + 1); ++chunk) {
    if (chunk_prefers_whole(static_cast<ChunkNumber>(chunk))) return true;
  }
  return false;
}

std::optional<std::uint32_t> ChunkedSource::read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                                 std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  if (tensor >= tensors_.size())
    throw std::invalid_argument("the checkpoint has no tensor number " + std::to_string(tensor));
  const SourceTensor& wanted = tensors_[tensor];
  const std::uint64_t element_bytes = dtype_size_bytes(wanted.dtype);
  const auto total = element_count(wanted.shape);
  if (first > total || count > total - first || out.size() != count * element_bytes) {
    throw std::invalid_argument("tensor \"" + wanted.name + "\" has " + std::to_string(total) + " elements; " +
                                std::to_string(count) + " from number " + std::to_string(first) +
                                " on do not fit it or the " + std::to_string(out.size()) + " bytes given");
  }
  if (count == 0) return std::nullopt;
  RangeReader range(*this, wanted, first, out, sums);
  for (std::size_t chunk = first_chunk_[tensor]; chunk < first_chunk_[tensor + 1]; ++chunk) {
    range.take_from(static_cast<ChunkNumber>(chunk));
  }
  return range.crc32();
}

std::vector<ReadSum> ChunkedSource::verify_sums(std::vector<ReadSum> sums) const {
  std::vector<ReadSum> uncovered;
  std::sort(sums.begin(), sums.end(), [](const ReadSum& a, const ReadSum& b) {
    return std::tie(a.storage, a.begin, a.end) < std::tie(b.storage, b.begin, b.end);
  });
  for (auto first = sums.begin(); first != sums.end();) {
    const auto last =
        std::find_if(first, sums.end(), [&](const ReadSum& sum) { return sum.storage != first->storage; });
    const auto recorded = recorded_sum(first->storage);
    const auto damaged = [&] {
      return FormatError(recorded->file, recorded->begin_bytes,
                         "the " + std::to_string(recorded->size_bytes) + " bytes of " + recorded->entry +
                             " do not have the recorded CRC-32; the file is damaged, use another copy or checkpoint");
    };
    if (recorded && differ_somewhere({first, last})) throw damaged();
    auto read = recorded ? put_together({first, last}, recorded->size_bytes) : std::nullopt;
    if (recorded && !read && recorded->size_bytes <= kSmallStorageBytes) {
      read = sum_of_file(recorded->file, recorded->begin_bytes, recorded->size_bytes);
    }
    if (read && *read != recorded->crc32) throw damaged();
    if (recorded && !read) uncovered.insert(uncovered.end(), first, last);
    first = last;
  }
  return uncovered;
}

}  // namespace fsdp
