#pragma once
// How FSDP1 lays the parameters of one unit into its flat parameter.
// Source: PyTorch FlatParamHandle._init_flat_param_and_metadata, torch/distributed/fsdp/_flat_param.py.
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// One parameter in the flat one, in elements.
struct FlatItem {
  std::uint64_t offset = 0, count = 0;
  std::uint64_t gap = 0;  ///< padding elements right behind it
};

struct FlatLayout {
  std::uint64_t alignment = 0;  ///< of each parameter's offset, in elements; 0: packed, without any padding
  std::vector<FlatItem> items;  ///< as the parameters
  std::uint64_t size = 0;

  bool has_padding() const;
};

/// The size of parameters of `counts` elements in one flat parameter.
/// \param alignment  of offsets, in elements; 0: packed (use_orig_params=False, or PyTorch before 2.1)
/// \param world_size  with an alignment, the end is padded to a multiple of it
/// \throws FormatError on overflow
FlatLayout flat_layout(std::span<const std::uint64_t> counts, std::uint64_t alignment, std::uint64_t world_size);

/// The alignments that PyTorch can have used, likeliest first: 16 bytes of float32, bfloat16, float64, float8; and 1.
std::span<const std::uint64_t> flat_alignments();

/// Every different layout of exactly `size` elements. When the packed one fits, it is the only one: any padding would
/// have made the flat parameter longer.
std::vector<FlatLayout> layouts_of_size(std::span<const std::uint64_t> counts, std::uint64_t size,
                                        std::span<const std::uint64_t> world_sizes);

}  // namespace fsdp
