#pragma once
// A folder in which processes of any hosts share the encoding of one input. Each piece of the input becomes a file; a
// process claims a piece before it encodes it, so that none is done twice, and one of them joins all pieces at the end.
// A process may end at any time: what it was doing is done again, the rest is kept.
//
// OUTPUT.parts holds, for each piece, piece-HASH.ids (batch_file.hpp) and then piece-HASH.json, which says that it is
// complete; folders of claims (lib/base/files/claim.hpp); at the end only done-HASH.json, by which processes that come
// late see that nothing is left to do. The hash is of the piece of the input and of all options that decide its ids, so
// that files of other inputs and options are never taken for these.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/files/claim.hpp"
#include "lib/base/messages/ignored.hpp"
#include "lib/documents/data_piece.hpp"

namespace fsdp::detail {

/// The ids of a piece of the input, in numbers.
struct PieceResult {
  std::int64_t documents = 0, tokens = 0, cut = 0, skipped = 0;
  std::string first_skipped;  ///< place of the first skipped sample, in which lines count from the piece's first
  std::int64_t lines = 0;     ///< of the piece, where it is a part of JSON Lines
  std::uint64_t bytes = 0;    ///< of the file of ids
  Ignored ignored;
};

class PieceFolder {
 public:
  /// Creates the folder.
  /// \param output          the file that the pieces are for; the folder is OUTPUT.parts
  /// \param encoding        hash of all that decides the ids of a piece beside its texts
  /// \param layout          hash of all that decides the output beside the pieces
  /// \param takeover_after  silence after which a process of another host is taken for dead
  /// \throws IoError
  PieceFolder(std::filesystem::path output, std::vector<DataPiece> pieces, std::uint64_t encoding, std::uint64_t layout,
              std::chrono::milliseconds takeover_after);

  const std::filesystem::path& path() const { return folder_; }
  std::size_t size() const { return pieces_.size(); }
  const DataPiece& piece(std::size_t index) const { return pieces_[index].input; }
  /// The file of ids of a piece.
  std::filesystem::path ids_file(std::size_t index) const;

  /// True when the output was made from these pieces and has not changed since.
  bool is_complete() const;
  /// Looks for pieces that were finished. \return true when all are
  bool all_done();
  /// Totals of the pieces that are known to be finished.
  struct Totals {
    std::int64_t pieces = 0, documents = 0, tokens = 0, bytes_read = 0;
  };
  const Totals& done() const { return done_; }
  /// Pieces that this process finished.
  std::int64_t own() const { return own_; }
  std::int64_t bytes_total() const { return bytes_total_; }

  /// Claims the first piece that is neither finished nor claimed. \return nullopt when there is none
  /// \throws IoError
  std::optional<std::size_t> take();
  /// True when another process has taken the piece over; the work on it is then in vain.
  bool lost() const { return claim_ != nullptr && claim_->lost(); }
  /// Marks the piece that is claimed as finished. \pre its file of ids is there. \throws IoError
  void finish(const PieceResult& result);
  /// \throws FormatError, IoError when the piece is not finished
  PieceResult result(std::size_t index) const;

  enum class Join {
    mine,     ///< this process has claimed it
    others,   ///< another process was seen at work on it; holder() tells who
    unknown,  ///< another process had claimed it, and may have ended: ask again
  };
  /// Claims the joining of all pieces.
  Join take_join();
  const std::string& holder() const { return holder_; }
  /// Notes that the output is complete, and removes the pieces.
  /// \return files of other pieces in the folder, which stay. \throws IoError
  std::int64_t finish_join();

 private:
  struct Piece {
    DataPiece input;
    std::string name;
    bool done = false;
    std::unique_ptr<ClaimWatch> watch;  ///< of a piece that another process was seen to hold
  };

  std::filesystem::path note_file(std::size_t index) const { return folder_ / (pieces_[index].name + ".json"); }
  std::filesystem::path done_file() const;
  bool look(std::size_t index);
  bool claim(ClaimWatch& watch, const std::filesystem::path& directory);

  std::filesystem::path output_, folder_;
  std::uint64_t plan_ = 0;  ///< hash of all pieces and of the layout
  std::chrono::milliseconds takeover_after_;
  std::vector<Piece> pieces_;
  std::size_t first_open_ = 0;  ///< all pieces before this one are done
  Totals done_;
  std::int64_t own_ = 0;
  std::int64_t bytes_total_ = 0;
  std::string holder_;
  std::optional<std::size_t> taken_;
  std::unique_ptr<ClaimWatch> join_watch_;
  Heartbeat heartbeat_;
  std::shared_ptr<Claim> claim_;  ///< of the piece, or of the joining
};

}  // namespace fsdp::detail
