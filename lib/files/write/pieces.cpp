#include "lib/files/write/pieces.hpp"

#include <algorithm>
#include <map>

#include "lib/files/formats/crc32.hpp"

namespace fsdp::detail {
namespace {

constexpr std::uint64_t page_bytes = 4096;

/// Pieces end at page boundaries of the output where elements do: two threads then seldom write one page.
std::uint64_t piece_elements(std::uint64_t offset_bytes, std::uint64_t left, std::uint64_t piece_bytes,
                             std::uint64_t element_bytes) {
  const auto most = std::max<std::uint64_t>(piece_bytes / element_bytes, 1);
  if (left <= most) return left;
  const auto over = (offset_bytes + most * element_bytes) % page_bytes;
  const auto rounded = (most * element_bytes - std::min(over, most * element_bytes)) / element_bytes;
  return rounded > 0 ? rounded : most;
}

void add_whole(PieceList& list, const Layout& layout, std::vector<std::size_t> segments, std::uint64_t element_bytes) {
  PieceJob job{list.pieces.size(), segments.size(), 0, true};
  for (const auto segment : segments) {
    list.pieces.push_back({segment, 0, layout.segments[segment].count});
    job.bytes += layout.segments[segment].count * element_bytes;
  }
  list.jobs.push_back(job);
}

}  // namespace

PieceList cut_pieces(const Source& source, const Layout& layout, std::uint64_t piece_bytes) {
  constexpr std::uint64_t most_pieces = 1u << 22;
  PieceList list;
  for (const auto& segment : layout.segments) {
    list.bytes += segment.count * dtype_size_bytes(source.tensors()[segment.tensor].dtype);
  }
  piece_bytes = std::max<std::uint64_t>({piece_bytes, list.bytes / most_pieces, 1});
  std::map<std::size_t, std::vector<std::size_t>> whole;  // tensor -> its segments
  for (std::size_t i = 0; i < layout.segments.size(); ++i) {
    const auto& segment = layout.segments[i];
    const std::uint64_t element_bytes = dtype_size_bytes(source.tensors()[segment.tensor].dtype);
    if (segment.count > 0 && source.prefers_whole(segment.tensor)) {
      whole[segment.tensor].push_back(i);
      continue;
    }
    for (std::uint64_t done = 0; done < segment.count;) {
      const auto offset = segment.offset_bytes + done * element_bytes;
      const auto count = piece_elements(offset, segment.count - done, piece_bytes, element_bytes);
      list.jobs.push_back({list.pieces.size(), 1, count * element_bytes, false});
      list.pieces.push_back({i, done, count});
      list.buffer_bytes = std::max(list.buffer_bytes, count * element_bytes);
      done += count;
    }
  }
  for (auto& [tensor, segments] : whole) {
    add_whole(list, layout, std::move(segments), dtype_size_bytes(source.tensors()[tensor].dtype));
  }
  return list;
}

std::vector<std::size_t> deal_jobs(const std::vector<PieceJob>& jobs, std::size_t num_ranks) {
  constexpr double job_cost_bytes = 16384;  // of starting a read and a write
  double total = 0;
  for (const auto& job : jobs) total += static_cast<double>(job.bytes) + job_cost_bytes;
  std::vector<std::size_t> begins{0};
  double done = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double middle = done + (static_cast<double>(jobs[i].bytes) + job_cost_bytes) / 2;
    while (begins.size() < num_ranks &&
           middle >= total * static_cast<double>(begins.size()) / static_cast<double>(num_ranks)) {
      begins.push_back(i);
    }
    done += static_cast<double>(jobs[i].bytes) + job_cost_bytes;
  }
  begins.resize(num_ranks + 1, jobs.size());
  return begins;
}

std::vector<std::uint32_t> segment_sums(const Source& source, const Layout& layout, const PieceList& list,
                                        const std::vector<std::uint32_t>& piece_sums) {
  std::vector<std::uint32_t> sums(layout.segments.size(), 0);
  for (std::size_t i = 0; i < list.pieces.size(); ++i) {
    const auto& piece = list.pieces[i];
    const auto element_bytes = dtype_size_bytes(source.tensors()[layout.segments[piece.segment].tensor].dtype);
    sums[piece.segment] = crc32_combine(sums[piece.segment], piece_sums[i], piece.count * element_bytes);
  }
  return sums;
}

}  // namespace fsdp::detail
