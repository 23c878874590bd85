#include "lib/training/checkpoints/weight_hash.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "lib/base/hash_functions.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {
namespace {

template <typename Word>
std::uint64_t sum_of(const Word* values, std::int64_t n, std::uint64_t place) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i)
    sum += splitmix64_output(place + static_cast<std::uint64_t>(i) * kSplitmix64Step + values[i]);
  return sum;
}

}  // namespace

void WeightHash::add(std::size_t param, std::int64_t first, const at::Tensor& values) {
  std::atomic<std::uint64_t> sum = 0;
  const auto start = splitmix64(param);
  parallel_for(values.numel(), std::int64_t{1} << 18, [&](std::int64_t begin, std::int64_t end) {
    const auto place = start + static_cast<std::uint64_t>(first + begin) * kSplitmix64Step;
    const auto* data = static_cast<const std::byte*>(values.const_data_ptr()) + begin * values.element_size();
    if (values.element_size() == 1) sum += sum_of(reinterpret_cast<const std::uint8_t*>(data), end - begin, place);
    if (values.element_size() == 2) sum += sum_of(reinterpret_cast<const std::uint16_t*>(data), end - begin, place);
    if (values.element_size() == 4) sum += sum_of(reinterpret_cast<const std::uint32_t*>(data), end - begin, place);
    if (values.element_size() == 8) sum += sum_of(reinterpret_cast<const std::uint64_t*>(data), end - begin, place);
  });
  sum_ += sum;
}

std::string WeightHash::of_all(ProcessGroup& ranks) const {
  std::uint64_t total = 0;
  for (const auto& part : ranks.gather({reinterpret_cast<const char*>(&sum_), sizeof(sum_)}, 0)) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, part.data(), sizeof(sum));
    total += sum;
  }
  return ranks.broadcast_text(fmt::format("{:016x}", total), 0);
}

}  // namespace fsdp
