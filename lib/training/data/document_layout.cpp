#include "lib/training/data/document_layout.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

/// \param lengths  tokens of each row
std::shared_ptr<Packing> lay_out_own(const std::vector<DocumentLengths>& rows,
                                     const std::vector<std::int64_t>& lengths) {
  auto packing = std::make_shared<Packing>();
  std::vector<std::int32_t> starts;
  const auto begin = [&](std::int64_t first, std::int64_t tokens) {
    starts.push_back(static_cast<std::int32_t>(first));
    packing->longest = std::max(packing->longest, tokens);
  };
  const auto total = std::reduce(lengths.begin(), lengths.end());
  if (total > std::numeric_limits<std::int32_t>::max())
    throw RequestError(std::to_string(rows.size()) + " packed rows of " + std::to_string(lengths.front()) +
                           " tokens are more than 2,147,483,647 tokens at once",
                       Remedy::smaller_batch_size);
  std::int64_t end = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    auto first = end;
    end += lengths[row];
    packing->row_begins.push_back(first);
    for (const auto& document : rows[row]) {
      const auto tokens = document.tokens;
      if (tokens < 1 || first + tokens > end) throw std::invalid_argument("make_packing: a document leaves its row");
      packing->documents.push_back({first, tokens, document.shared});
      begin(first, tokens);
      first += tokens;
    }
    if (first < end) begin(first, end - first);  // padding
  }
  starts.push_back(static_cast<std::int32_t>(total));
  packing->starts = at::empty({std::ssize(starts)}, at::kInt);
  std::copy(starts.begin(), starts.end(), packing->starts.data_ptr<std::int32_t>());
  return packing;
}

/// Documents with copies of the tokens that they share, and no padding. \return nothing where none does
std::shared_ptr<const Packing> lay_out_whole(std::vector<DocumentLengths> rows, std::int64_t& tokens) {
  std::vector<std::int64_t> lengths;
  bool shares = false;
  for (auto& row : rows) {
    lengths.push_back(0);
    for (auto& document : row) {
      shares = shares || document.shared > 0;
      document = document.whole();
      lengths.back() += document.tokens;
    }
  }
  if (!shares) return nullptr;
  tokens = std::reduce(lengths.begin(), lengths.end());
  return lay_out_own(rows, lengths);
}

}  // namespace

std::shared_ptr<Packing> lay_out_documents(const std::vector<DocumentLengths>& rows, std::int64_t length) {
  auto packing = lay_out_own(rows, std::vector<std::int64_t>(rows.size(), length));
  packing->whole = lay_out_whole(rows, packing->whole_tokens);
  return packing;
}

std::shared_ptr<Packing> make_packing(const std::vector<DocumentLengths>& rows, std::int64_t length) {
  auto packing = lay_out_documents(rows, length);
  packing->positions_N = at::empty({std::ssize(rows) * length}, at::kInt);
  auto* positions = packing->positions_N.data_ptr<std::int32_t>();
  // Padding gets position 0: a row may have more padding than the model has positions.
  std::fill_n(positions, packing->positions_N.numel(), 0);
  for (const auto& document : packing->documents) {
    std::iota(positions + document.first, positions + document.first + document.length,
              static_cast<std::int32_t>(document.shared));
  }
  return packing;
}

double attended_length(const std::vector<DocumentLengths>& rows) {
  double positions = 0, tokens = 0;
  for (const auto& row : rows) {
    for (const auto& document : row) {
      const auto own = static_cast<double>(document.tokens);
      positions += own * (own + 2 * static_cast<double>(document.shared));
      tokens += own;
    }
  }
  return tokens > 0 ? positions / tokens : 0;
}

std::vector<DocumentLengths> documents_of_rows(const std::vector<DocumentLengths>& documents, std::size_t rows) {
  std::vector<DocumentLengths> of_rows;
  for (std::size_t r = 0; r < rows; ++r) of_rows.push_back(documents[r % documents.size()]);
  return of_rows;
}

}  // namespace fsdp
