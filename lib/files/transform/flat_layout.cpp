#include "lib/files/transform/flat_layout.hpp"

#include <algorithm>
#include <array>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw FormatError("parameters have more elements than 64 bits can count");
  return sum;
}

bool same_offsets(const FlatLayout& a, const FlatLayout& b) {
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [](const FlatItem& x, const FlatItem& y) { return x.offset == y.offset; });
}

}  // namespace

bool FlatLayout::has_padding() const {
  return std::any_of(items.begin(), items.end(), [](const FlatItem& item) { return item.gap != 0; });
}

FlatLayout flat_layout(std::span<const std::uint64_t> counts, std::uint64_t alignment, std::uint64_t world_size) {
  FlatLayout layout;
  layout.alignment = alignment;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto end = plus(layout.size, counts[i]);
    // Aligned: before each parameter; behind the last one, for the shards.
    const auto multiple = alignment == 0 ? 1 : i + 1 < counts.size() ? alignment : world_size;
    const auto gap = (multiple - end % multiple) % multiple;
    layout.items.push_back({layout.size, counts[i], gap});
    layout.size = plus(end, gap);
  }
  return layout;
}

std::span<const std::uint64_t> flat_alignments() {
  static constexpr std::array<std::uint64_t, 5> kAlignments{4, 8, 2, 16, 1};
  return kAlignments;
}

std::vector<FlatLayout> layouts_of_size(std::span<const std::uint64_t> counts, std::uint64_t size,
                                        std::span<const std::uint64_t> world_sizes) {
  std::vector<FlatLayout> found;
  auto packed = flat_layout(counts, 0, 1);
  if (packed.size == size) {
    found.push_back(std::move(packed));
    return found;
  }
  if (packed.size > size) return found;
  for (const auto alignment : flat_alignments()) {
    for (const auto world_size : world_sizes) {
      auto layout = flat_layout(counts, alignment, world_size);
      const auto known = [&](const FlatLayout& other) { return same_offsets(layout, other); };
      if (layout.size == size && std::none_of(found.begin(), found.end(), known)) found.push_back(std::move(layout));
    }
  }
  return found;
}

}  // namespace fsdp
