#include "lib/files/formats/pickle_check.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_walk.hpp"

namespace fsdp::detail {
namespace {

/// Walks the graph once per value and adds up what a walk that follows every reference would visit.
class GraphCheck {
 public:
  GraphCheck(const PickleDocument& document, const PickleLimits& limits, const std::string& file)
      : limits_(limits), file_(file), seen_(document.values.size()) {}

  struct Extent {
    std::uint64_t visits = 0;  // 0: not finished
    std::uint32_t height = 0;
  };

  Extent check(PickleRef value, std::uint32_t depth) {
    if (seen_[value->index].visits != 0) return seen_[value->index];
    // A value that contains itself ends here too.
    if (depth >= limits_.max_depth) fail(*value, "nests deeper than " + std::to_string(limits_.max_depth) + " levels");
    Extent extent{1, 1};
    for_each_child(*value, [&](PickleRef child) {
      const Extent inner = check(child, depth + 1);
      extent.visits += inner.visits;  // both at most max_values: no overflow
      extent.height = std::max(extent.height, inner.height + 1);
      if (extent.visits > limits_.max_values) fail(*value, "repeats shared values too often");
      if (extent.height > limits_.max_depth) fail(*value, "nests too deep");
    });
    return seen_[value->index] = extent;
  }

 private:
  [[noreturn]] void fail(const PickleValue& value, const std::string& what) const {
    throw FormatError(file_, value.offset_bytes, "pickle: " + describe(value) + " " + what);
  }

  const PickleLimits& limits_;
  const std::string& file_;
  std::vector<Extent> seen_;
};

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    std::uint32_t point = lead & (0xff >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xc0) != 0x80) return false;
      point = point << 6 | (byte & 0x3f);
    }
    constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < smallest[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    i += length;
  }
  return true;
}

PickleValue::Data pickle_integer(std::string_view bytes) {
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  if (bytes.size() <= 8) {
    std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
    return static_cast<std::int64_t>(bits);
  }
  // Magnitude in limbs of nine decimal digits, least significant first; -x == ~x + 1.
  constexpr std::uint64_t base = 1'000'000'000;
  std::vector<std::uint32_t> limbs{0};
  const auto multiply_add = [&limbs](std::uint64_t factor, std::uint64_t carry) {
    for (auto& limb : limbs) {
      carry += limb * factor;
      limb = static_cast<std::uint32_t>(carry % base);
      carry /= base;
    }
    if (carry != 0) limbs.push_back(static_cast<std::uint32_t>(carry));
  };
  for (std::size_t i = bytes.size(); i-- > 0;) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    multiply_add(256, negative ? 0xffu - byte : byte);
  }
  if (negative) multiply_add(1, 1);
  while (limbs.size() > 1 && limbs.back() == 0) limbs.pop_back();
  std::string digits = (negative ? "-" : "") + std::to_string(limbs.back());
  for (std::size_t i = limbs.size() - 1; i-- > 0;) {
    const std::string limb = std::to_string(limbs[i]);
    digits += std::string(9 - limb.size(), '0') + limb;
  }
  // Nine or more bytes may still spell a small number.
  errno = 0;
  const long long value = std::strtoll(digits.c_str(), nullptr, 10);
  if (errno == 0) return std::int64_t{value};
  return PickleBigInt{std::move(digits)};
}

void check_pickle_graph(const PickleDocument& document, const PickleLimits& limits, const std::string& file) {
  GraphCheck(document, limits, file).check(document.root, 0);
}

}  // namespace fsdp::detail
