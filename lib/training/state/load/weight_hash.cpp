#include "lib/training/state/load/weight_hash.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>

#include "lib/checkpoints/model/base_weights.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {

void WeightHash::add(std::size_t param, std::int64_t first, const at::Tensor& values) {
  std::atomic<std::uint64_t> sum = 0;
  const auto item = static_cast<std::size_t>(values.element_size());
  parallel_for(values.numel(), std::int64_t{1} << 18, [&](std::int64_t begin, std::int64_t end) {
    const auto* data = static_cast<const std::byte*>(values.const_data_ptr()) + static_cast<std::size_t>(begin) * item;
    sum += mark_of_elements(param, static_cast<std::uint64_t>(first + begin),
                            {data, static_cast<std::size_t>(end - begin) * item}, item);
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
  return ranks.broadcast_text(mark_of_sum(total), 0);
}

}  // namespace fsdp
