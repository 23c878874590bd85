// Compiled so that products and sums stay apart (CMakeLists.txt).
#include "lib/kernels/nf4_code.hpp"

#include "lib/kernels/eight_bit_code.hpp"

namespace fsdp::kernels {

void nf4_nested_scales(const Nf4NestedArgs& a, std::int64_t begin, std::int64_t end) {
  const auto& values = signed_code().values;
  for (auto i = begin; i < end; ++i)
    a.out[i] = values[a.codes[i]] * a.nested[(a.first + i) / kEightBitBlock] + a.offset;
}

const std::array<float, 512>& nf4_pairs() {
  static const std::array<float, 512> pairs = [] {
    std::array<float, 512> values{};
    for (std::size_t byte = 0; byte < 256; ++byte) {
      values[2 * byte] = kNf4Code[byte >> 4];
      values[2 * byte + 1] = kNf4Code[byte & 15];
    }
    return values;
  }();
  return pairs;
}

}  // namespace fsdp::kernels
