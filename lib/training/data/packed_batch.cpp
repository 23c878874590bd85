#include "lib/training/data/packed_batch.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "lib/base/error.hpp"

namespace fsdp {

std::shared_ptr<Packing> lay_out_documents(const std::vector<DocumentLengths>& rows, std::int64_t length) {
  auto packing = std::make_shared<Packing>();
  std::vector<std::int32_t> starts;
  const auto begin = [&](std::int64_t first, std::int64_t tokens) {
    starts.push_back(static_cast<std::int32_t>(first));
    packing->longest = std::max(packing->longest, tokens);
  };
  const auto total = static_cast<std::int64_t>(rows.size()) * length;
  if (total > std::numeric_limits<std::int32_t>::max())
    throw UsageError("--batch-size " + std::to_string(rows.size()) + " with --pack: rows of " + std::to_string(length) +
                     " tokens are more than 2,147,483,647 tokens at once: choose a smaller one");
  for (std::size_t row = 0; row < rows.size(); ++row) {
    auto first = static_cast<std::int64_t>(row) * length;
    const auto end = first + length;
    for (const auto tokens : rows[row]) {
      if (tokens < 1 || first + tokens > end) throw std::invalid_argument("make_packing: a document leaves its row");
      packing->documents.push_back({first, tokens});
      begin(first, tokens);
      first += tokens;
    }
    if (first < end) begin(first, end - first);  // padding
  }
  starts.push_back(static_cast<std::int32_t>(total));
  packing->starts = at::empty({static_cast<std::int64_t>(starts.size())}, at::kInt);
  std::copy(starts.begin(), starts.end(), packing->starts.data_ptr<std::int32_t>());
  return packing;
}

std::shared_ptr<Packing> make_packing(const std::vector<DocumentLengths>& rows, std::int64_t length) {
  auto packing = lay_out_documents(rows, length);
  packing->positions_N = at::empty({static_cast<std::int64_t>(rows.size()) * length}, at::kInt);
  auto* positions = packing->positions_N.data_ptr<std::int32_t>();
  // Padding stays at the first position: a row may have more of it than the model has positions.
  std::fill_n(positions, packing->positions_N.numel(), 0);
  for (const auto& document : packing->documents) {
    std::iota(positions + document.first, positions + document.first + document.length, 0);
  }
  return packing;
}

}  // namespace fsdp
