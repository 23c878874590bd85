#include "lib/encoding/encode_pieces.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "lib/base/types/error.hpp"

namespace fsdp::detail {
namespace {

/// True for a part of a file of lines, which are counted from its first one; rows of Parquet are counted from the
/// file's.
bool counts_lines(const DataPiece& piece) {
  return !piece.is_whole() && data_file_kind(piece.file) == DataFileKind::json_lines;
}

void add(const EncodedBatch& batch, PieceResult& result) {
  result.documents += std::ssize(batch.ends);
  result.tokens += std::ssize(batch.ids);
  result.cut += batch.cut;
  result.equal += batch.equal;
  if (result.skipped == 0) result.first_skipped = batch.first_skipped;
  result.skipped += batch.skipped;
}

/// Names by file, all of which are of the piece's.
std::vector<std::string> names_in(const Ignored& ignored) {
  std::vector<std::string> names;
  const auto all = ignored.to_json();
  for (const auto& [file, of_file] : all.items()) {
    for (const auto& name : of_file) names.push_back(name.get<std::string>());
  }
  return names;
}

/// Lines of a file before a piece: those that earlier pieces noted, where they are finished.
std::int64_t lines_before_piece(const PieceFolder& folder, std::size_t index) {
  const auto& piece = folder.piece(index);
  std::int64_t lines = 0;
  for (auto i = index; i > 0 && folder.piece(i - 1).file == piece.file && folder.piece(i).begin > 0; --i) {
    const auto result = folder.result(i - 1);
    if (!result) return lines_before(piece);
    lines += result->lines;
  }
  return lines;
}

/// Encodes the piece that is claimed. \return false when it was stopped, or lost to another process
bool encode_piece(PieceFolder& folder, std::size_t index, const PieceEncoder& encoder,
                  const std::function<void(std::int64_t)>& tell, const std::function<bool()>& stop_wanted) {
  const auto& piece = folder.piece(index);
  const bool has_lines = counts_lines(piece);
  const auto begin = has_lines ? piece.begin : 0;
  Ignored ignored;
  DocumentStream stream(std::vector<DataPiece>{piece}, encoder.selection, 0);
  BatchFileWriter writer(folder.ids_file(index), encoder.file);
  PieceResult result;
  const auto take = [&](const EncodedBatch& batch) {
    writer.add(batch);
    add(batch, result);
    ignored.add(batch.ignored);
    // How far a row group is read is not known.
    if (has_lines || piece.is_whole()) tell(std::clamp<std::int64_t>(batch.bytes_read - begin, 0, piece.bytes));
  };
  const auto stops = [&] { return folder.lost() || (stop_wanted && stop_wanted()); };
  if (!encode_all(stream, encoder.encoder, encoder.threads, take, stops)) return false;
  ignored.add(stream.ignored());
  result.unread = names_in(ignored);
  if (has_lines) result.lines = lines_in(piece);
  if (folder.lost_now()) return false;
  try {
    result.bytes = writer.finish();
  } catch (const IoError&) {
    if (folder.lost_now()) return false;
    throw;
  }
  folder.finish(result);
  return true;
}

}  // namespace

bool encode_pieces(PieceFolder& folder, const PieceEncoder& encoder, const std::function<void(std::int64_t)>& tell,
                   const std::function<bool()>& stop_wanted) {
  while (true) {
    tell(0);
    if (stop_wanted && stop_wanted()) return false;
    if (const auto index = folder.take()) {
      try {
        encode_piece(folder, *index, encoder, tell, stop_wanted);
      } catch (const FormatError& error) {
        const auto& piece = folder.piece(*index);
        if (!counts_lines(piece)) throw;
        throw FormatError(with_lines_before(piece, error.what(), lines_before_piece(folder, *index)), error.advice());
      }
      continue;
    }
    if (folder.all_done() || folder.is_complete()) return true;
    std::this_thread::sleep_for(kPoll);
  }
}

bool PieceReader::next(EncodedBatch& batch) {
  if (index_ == folder_.size()) return false;
  const auto& piece = folder_.piece(index_);
  if (!reader_) {
    if (piece.begin == 0) lines_ = 0;
    reader_.emplace(folder_.ids_file(index_), options_);
    documents_ = ids_ = 0;
  }
  if (!reader_->next(batch)) {
    end_piece(batch);
    return true;
  }
  documents_ += std::ssize(batch.ends);
  ids_ += std::ssize(batch.ids);
  for (auto& place : batch.places) place = with_lines_before(piece, place, lines_);
  return true;
}

/// Gives the numbers of a piece as a whole.
void PieceReader::end_piece(EncodedBatch& batch) {
  const auto& piece = folder_.piece(index_);
  const auto result = folder_.result(index_);
  if (!result) {
    throw IoError(folder_.ids_file(index_).string() +
                  ": was removed while it was read, as another run with the same output does when it ends: run the "
                  "same command again after it");
  }
  if (result->documents != documents_ || result->tokens != ids_) {
    throw FormatError(folder_.ids_file(index_).string() +
                      ": holds other documents than its note says: remove this file, and run the same command again");
  }
  batch = {};
  batch.cut = result->cut;
  batch.equal = result->equal;
  batch.skipped = result->skipped;
  batch.first_skipped = with_lines_before(piece, result->first_skipped, lines_);
  if (!result->unread.empty()) batch.ignored.add(piece.file.string(), result->unread);
  lines_ += result->lines;
  bytes_read_ += piece.bytes;
  reader_.reset();
  ++index_;
}

}  // namespace fsdp::detail
