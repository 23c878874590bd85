#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace fsdp {

/// Bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// A set of byte positions, kept as disjoint ranges that do not touch.
class IntervalSet {
 public:
  void add(ByteRange range);
  void subtract(ByteRange range);
  bool contains(ByteRange range) const;
  /// End of the range that holds `position`; `position` itself when none does.
  std::uint64_t run_end(std::uint64_t position) const;
  /// The parts of `range` that are not in the set, ascending.
  std::vector<ByteRange> missing(ByteRange range) const;
  /// The parts of `range` that are in the set, ascending.
  std::vector<ByteRange> within(ByteRange range) const;
  std::vector<ByteRange> ranges() const;
  std::uint64_t size() const;  ///< bytes in the set
  bool empty() const { return ends_.empty(); }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  ///< begin -> end
};

}  // namespace fsdp
