#pragma once
// Whether weights are those of before, on any number of ranks (lib/checkpoints/model/base_weights.hpp).
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

class WeightHash {
 public:
  /// Elements of a parameter as they are stored. \param first  number of the first of them in the parameter
  void add(std::size_t param, std::int64_t first, const at::Tensor& values);
  /// 16 hexadecimal digits. Collective over the ranks that have the rows.
  std::string of_all(ProcessGroup& ranks) const;

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace fsdp
