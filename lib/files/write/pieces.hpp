#pragma once
// A layout's segments cut into what one thread reads and writes at once, and dealt out to ranks.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp::detail {

/// Elements [first, first + count) of segment number `segment`, counted from the segment's own first element.
struct Piece {
  std::size_t segment = 0;
  std::uint64_t first = 0, count = 0;
};

/// Pieces [first, first + count) that one thread does together: one, or all of a tensor that is best read whole.
struct PieceJob {
  std::size_t first = 0, count = 0;
  std::uint64_t bytes = 0;
  bool whole = false;
};

/// The same on every rank. The pieces of a segment are in order and cover it.
struct PieceList {
  std::vector<Piece> pieces;
  std::vector<PieceJob> jobs;
  std::uint64_t bytes = 0;         ///< of all pieces
  std::uint64_t buffer_bytes = 0;  ///< of the largest piece that is no part of a whole tensor
};
/// \param piece_bytes  of a piece at most, unless that makes millions of them
PieceList cut_pieces(const Source& source, const Layout& layout, std::uint64_t piece_bytes);

/// Where each rank's jobs begin: rank r has jobs [result[r], result[r + 1]), about equal in bytes and side by side.
std::vector<std::size_t> deal_jobs(const std::vector<PieceJob>& jobs, std::size_t num_ranks);

/// CRC-32 of each segment of the layout from that of each piece.
std::vector<std::uint32_t> segment_sums(const Source& source, const Layout& layout, const PieceList& list,
                                        const std::vector<std::uint32_t>& piece_sums);

}  // namespace fsdp::detail
