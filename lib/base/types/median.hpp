#pragma once
#include <algorithm>
#include <vector>

#include "lib/base/types/index.hpp"

namespace fsdp {

/// The middle value, or the mean of the two middle ones. \pre values is not empty
inline double median(std::vector<double> values) {
  const auto middle = iterator_at(values, values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace fsdp
