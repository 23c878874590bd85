#pragma once
// Makes the packing of documents in rows without a loader.
#include <ATen/ops/tensor.h>

#include <memory>
#include <numeric>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp::test {

/// \param rows  number of tokens of each document in each row
/// \param length  tokens of a row
inline std::shared_ptr<const Packing> packed(const std::vector<std::vector<std::int64_t>>& rows, std::int64_t length) {
  auto packing = std::make_shared<Packing>();
  std::vector<std::int32_t> positions, starts;
  const auto add = [&](std::int64_t tokens) {
    starts.push_back(static_cast<std::int32_t>(positions.size()));
    packing->longest = std::max(packing->longest, tokens);
    for (std::int32_t t = 0; t < tokens; ++t) positions.push_back(t);
  };
  for (const auto& documents : rows) {
    const auto end = static_cast<std::int64_t>(positions.size()) + length;
    for (const auto tokens : documents) {
      packing->documents.push_back({static_cast<std::int64_t>(positions.size()), tokens});
      add(tokens);
    }
    if (const auto left = end - static_cast<std::int64_t>(positions.size()); left > 0) add(left);
  }
  starts.push_back(static_cast<std::int32_t>(positions.size()));
  packing->positions_N = at::tensor(positions, at::kInt);
  packing->starts = at::tensor(starts, at::kInt);
  return packing;
}

}  // namespace fsdp::test
