#pragma once
// Layout of documents that share the rows of a micro-batch.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

/// A document in a row: Packing::Document without its place.
struct DocumentLength {
  DocumentLength(std::int64_t own, std::int64_t of_the_one_before = 0) : tokens(own), shared(of_the_one_before) {}
  std::int64_t whole() const { return tokens + shared; }

  std::int64_t tokens, shared;
};
/// The documents of a row, in order; they follow each other from the beginning of the row.
using DocumentLengths = std::vector<DocumentLength>;

/// Computes where documents and padding lie, without positions. On the host.
/// \param rows    none empty; the sum of a row is at most `length`
/// \param length  tokens of each row
/// \throws RequestError when there are 2^31 tokens or more
std::shared_ptr<Packing> lay_out_documents(const std::vector<DocumentLengths>& rows, std::int64_t length);
/// lay_out_documents() and the positions of all tokens.
std::shared_ptr<Packing> make_packing(const std::vector<DocumentLengths>& rows, std::int64_t length);

/// Twice the number of positions that a token attends to, in the mean over the tokens of all rows; 0 without tokens.
double attended_length(const std::vector<DocumentLengths>& rows);

/// The documents of as many rows, which repeat those of `documents`. \pre there are some
std::vector<DocumentLengths> documents_of_rows(const std::vector<DocumentLengths>& documents, std::size_t rows);

}  // namespace fsdp
