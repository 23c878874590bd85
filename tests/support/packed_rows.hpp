#pragma once
// Makes the packing of documents in rows without a loader.
#include <ATen/ops/tensor.h>

#include <memory>
#include <numeric>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp::test {

/// Own tokens of a document, and those that it shares.
struct PackedDocument {
  PackedDocument(std::int64_t own, std::int64_t of_the_one_before = 0) : tokens(own), shared(of_the_one_before) {}
  std::int64_t tokens, shared;
};

/// \param length  tokens of a row
inline std::shared_ptr<Packing> packed_sharing(const std::vector<std::vector<PackedDocument>>& rows,
                                               std::int64_t length) {
  auto packing = std::make_shared<Packing>();
  std::vector<std::int32_t> positions, starts;
  const auto add = [&](std::int64_t tokens, std::int64_t first_position) {
    starts.push_back(static_cast<std::int32_t>(positions.size()));
    packing->longest = std::max(packing->longest, tokens);
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<std::int32_t>(first_position + t));
  };
  std::vector<std::vector<PackedDocument>> whole_rows;
  std::int64_t whole_tokens = 0;
  bool shares = false;
  for (const auto& documents : rows) {
    const auto end = static_cast<std::int64_t>(positions.size()) + length;
    packing->row_begins.push_back(static_cast<std::int64_t>(positions.size()));
    whole_rows.emplace_back();
    for (const auto& [tokens, shared] : documents) {
      packing->documents.push_back({static_cast<std::int64_t>(positions.size()), tokens, shared});
      add(tokens, shared);
      whole_rows.back().emplace_back(tokens + shared);
      whole_tokens += tokens + shared;
      shares = shares || shared > 0;
    }
    if (const auto left = end - static_cast<std::int64_t>(positions.size()); left > 0) add(left, 0);
  }
  if (shares) {
    packing->whole = packed_sharing(whole_rows, 0);
    packing->whole_tokens = whole_tokens;
  }
  starts.push_back(static_cast<std::int32_t>(positions.size()));
  packing->positions_N = at::tensor(positions, at::kInt);
  packing->starts = at::tensor(starts, at::kInt);
  return packing;
}

/// \param rows  number of tokens of each document in each row
inline std::shared_ptr<const Packing> packed(const std::vector<std::vector<std::int64_t>>& rows, std::int64_t length) {
  std::vector<std::vector<PackedDocument>> documents;
  for (const auto& row : rows) documents.emplace_back(row.begin(), row.end());
  return packed_sharing(documents, length);
}

}  // namespace fsdp::test
