#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace fsdp {

/// The bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// A set of byte positions, stored as disjoint, non-adjacent ranges.
class IntervalSet {
 public:
  void add(ByteRange range);
  void subtract(ByteRange range);
  bool contains(ByteRange range) const;
  /// End of the range that contains `position`, or `position` itself when no range does.
  std::uint64_t run_end(std::uint64_t position) const;
  /// The parts of `range` that are not in the set, in ascending order.
  std::vector<ByteRange> missing(ByteRange range) const;
  /// The parts of `range` that are in the set, in ascending order.
  std::vector<ByteRange> within(ByteRange range) const;
  std::vector<ByteRange> ranges() const;
  std::uint64_t size() const;  ///< bytes in the set
  bool empty() const { return ends_.empty(); }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  ///< begin -> end
};

}  // namespace fsdp
