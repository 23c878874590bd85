#include "lib/files/transform/flat_pieces.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/transform/transform_decorated.hpp"

namespace fsdp {

PieceSource::PieceSource(std::vector<std::shared_ptr<const Source>> sources) : sources_(std::move(sources)) {
  info_ = sources_.front()->info();
  for (std::size_t i = 1; i < sources_.size(); ++i) {
    const auto& files = sources_[i]->info().files;
    info_.files.insert(info_.files.end(), files.begin(), files.end());
  }
}

void PieceSource::add_tensor(SourceTensor tensor, std::vector<TensorPiece> pieces, std::vector<TensorPiece> padding,
                             bool is_alias) {
  tensors_.push_back(std::move(tensor));
  assemblies_.push_back({std::move(pieces), std::move(padding), is_alias});
}

void PieceSource::add_value(SourceValue value, std::size_t source, std::size_t number) {
  values_.push_back(std::move(value));
  origins_.push_back({source, number, {}});
}

void PieceSource::add_value(SourceValue value, LoadedValue loaded) {
  values_.push_back(std::move(value));
  origins_.push_back({0, 0, std::move(loaded)});
}

std::optional<std::uint32_t> PieceSource::read_piece(const TensorPiece& piece, std::span<std::byte> out,
                                                     std::vector<ReadSum>* sums) const {
  const auto before = sums != nullptr ? sums->size() : 0;
  const auto crc = sources_[piece.source]->read(piece.tensor, piece.first, piece.count, out, sums);
  if (sums == nullptr) return crc;
  // One numbering for the storages of all sources. A number too large for it is not checked.
  const auto fits = [&](const ReadSum& sum) {
    return sum.storage <= (std::numeric_limits<std::uint32_t>::max() - piece.source) / sources_.size();
  };
  const auto begin = sums->begin() + static_cast<std::ptrdiff_t>(before);
  sums->erase(std::remove_if(begin, sums->end(), [&](const ReadSum& sum) { return !fits(sum); }), sums->end());
  for (auto i = before; i < sums->size(); ++i) {
    (*sums)[i].storage = static_cast<std::uint32_t>((*sums)[i].storage * sources_.size() + piece.source);
  }
  return crc;
}

std::optional<std::uint32_t> PieceSource::read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                               std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const auto& assembly = assemblies_.at(tensor);
  const auto& description = tensors_[tensor];
  check_read(description, first, count, out.size());
  if (assembly.is_alias) sums = nullptr;
  const auto item = dtype_size_bytes(description.dtype);
  std::optional<std::uint32_t> crc;
  std::uint64_t begin = 0, done = 0;  // of the piece in the tensor; of the elements
  for (const auto& piece : assembly.pieces) {
    const auto from = std::max(first, begin), to = std::min(first + count, begin + piece.count);
    if (from < to) {
      const TensorPiece part{piece.source, piece.tensor, piece.first + (from - begin), to - from};
      const auto piece_crc = read_piece(part, out.subspan((from - first) * item, (to - from) * item), sums);
      if (to - from == count) crc = piece_crc;
      done += to - from;
    }
    begin += piece.count;
  }
  if (done != count) throw std::logic_error("pieces of \"" + description.name + "\" do not make up its elements");
  if (sums != nullptr && first + count == begin) {
    std::vector<std::byte> padding;
    for (const auto& piece : assembly.padding) {
      padding.resize(piece.count * item);
      read_piece(piece, padding, sums);
    }
  }
  return crc;
}

bool PieceSource::prefers_whole(std::size_t tensor) const {
  const auto& pieces = assemblies_.at(tensor).pieces;
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const TensorPiece& piece) { return sources_[piece.source]->prefers_whole(piece.tensor); });
}

LoadedValue PieceSource::value(std::size_t value) const {
  const auto& origin = origins_.at(value);
  return origin.loaded.document != nullptr ? origin.loaded : sources_[origin.source]->value(origin.number);
}

std::vector<ReadSum> PieceSource::verify_sums(std::vector<ReadSum> sums) const {
  std::vector<std::vector<ReadSum>> by_source(sources_.size());
  for (auto sum : sums) {
    auto& own = by_source[sum.storage % sources_.size()];
    sum.storage = static_cast<std::uint32_t>(sum.storage / sources_.size());
    own.push_back(sum);
  }
  std::vector<ReadSum> uncovered;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    for (auto sum : sources_[i]->verify_sums(std::move(by_source[i]))) {
      sum.storage = static_cast<std::uint32_t>(sum.storage * sources_.size() + i);
      uncovered.push_back(sum);
    }
  }
  return uncovered;
}

}  // namespace fsdp
