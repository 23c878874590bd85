#pragma once
// Encodes the pieces of a PieceFolder, and reads them back in order.
#include <cstdint>
#include <functional>
#include <optional>

#include "lib/documents/documents.hpp"
#include "lib/encoding/batch_file.hpp"
#include "lib/encoding/encode_pipeline.hpp"
#include "lib/encoding/piece_folder.hpp"

namespace fsdp::detail {

/// How long processes wait before they look again at what others do.
inline constexpr auto kPoll = std::chrono::milliseconds(200);

/// How a piece becomes a file of ids.
struct PieceEncoder {
  const DocumentEncoder& encoder;
  DataSelection selection;
  int threads;
  BatchFileOptions file;
};

/// Encodes pieces that no other process holds until all are finished, waiting for those of others, and taking them over
/// from processes that ended. Returns early when the output turns out to be complete.
/// \param tell         called now and then with the bytes read of the piece at hand
/// \param stop_wanted  polled
/// \return false when stop_wanted returned true; the piece at hand is then released
/// \throws FormatError naming file and line or row of malformed input; IoError
bool encode_pieces(PieceFolder& folder, const PieceEncoder& encoder, const std::function<void(std::int64_t)>& tell,
                   const std::function<bool()>& stop_wanted);

/// The documents of all pieces, as they come where one process encodes the files: lines are counted from the file's
/// first one.
class PieceReader {
 public:
  /// \param folder  its pieces are finished; must outlive this object
  PieceReader(const PieceFolder& folder, BatchFileOptions options) : folder_(folder), options_(options) {}

  /// \return false after the last piece. \throws FormatError naming the file of a piece that is damaged; IoError
  bool next(EncodedBatch& batch);
  /// Bytes of the input that the batches so far are of.
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  void end_piece(EncodedBatch& batch);

  const PieceFolder& folder_;
  BatchFileOptions options_;
  std::size_t index_ = 0;
  std::optional<BatchFileReader> reader_;
  std::int64_t lines_ = 0;                ///< of the file before the piece
  std::int64_t documents_ = 0, ids_ = 0;  ///< of the piece so far
  std::int64_t bytes_read_ = 0;
};

}  // namespace fsdp::detail
