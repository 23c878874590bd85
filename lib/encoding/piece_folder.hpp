#pragma once
// A folder in which processes of any hosts share the encoding of one input. Each piece of the input becomes a file; a
// process claims a piece before it encodes it, so that none is done twice, and one of them joins all pieces at the end.
// A process may end at any time: what it was doing is done again, the rest is kept.
//
// OUTPUT.parts holds, for each piece, piece-HASH.ids (batch_file.hpp) and then piece-HASH.json, which says that it is
// complete; folders of claims (lib/base/files/claim.hpp); the output until it gets its name; at the end only
// done-HASH.json, by which processes that come late see that nothing is left to do. The hash of a piece is of the part
// of the input and of all options that decide the output, so that a run of other options, which removes its pieces when
// they are joined, never removes these. The plan's, in the other names, is of all pieces.
#include <chrono>
#include <cstdint>
#include <filesystem>
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
  std::int64_t documents = 0, tokens = 0, cut = 0, equal = 0, skipped = 0;
  std::string first_skipped;        ///< place of the first skipped sample, in which lines count from the piece's first
  std::int64_t lines = 0;           ///< of the piece, where it is a part of JSON Lines
  std::uint64_t bytes = 0;          ///< of the file of ids
  std::vector<std::string> unread;  ///< keys and columns that nothing reads
};

class PieceFolder {
 public:
  /// All that the processes of one output have in common.
  struct Plan {
    std::filesystem::path output;
    std::vector<std::filesystem::path> also_written;  ///< without these, too, the output is not complete
    std::vector<DataPiece> pieces;
    std::uint64_t encoding = 0;                   ///< hash of all that decides the ids of a piece beside its texts
    std::uint64_t layout = 0;                     ///< hash of all that decides the output beside the ids
    std::chrono::milliseconds takeover_after{0};  ///< silence after which a process of another host is taken for dead
  };
  /// Creates the folder. \throws IoError
  explicit PieceFolder(Plan plan);

  std::size_t size() const { return pieces_.size(); }
  const DataPiece& piece(std::size_t index) const { return pieces_[index].input; }
  /// The file of ids of a piece.
  std::filesystem::path ids_file(std::size_t index) const;

  /// True when the output was made from these pieces, and neither it nor what is also written has changed since.
  bool is_complete() const;
  /// Looks for pieces that were finished. \return true when all are
  bool all_done();
  std::int64_t pieces_done() const { return pieces_done_; }
  /// Bytes of the input in the pieces that are known to be finished.
  std::int64_t bytes_done() const { return bytes_done_; }
  std::int64_t bytes_total() const { return bytes_total_; }
  /// Pieces that this process finished.
  std::int64_t own() const { return own_; }

  /// Claims the first piece that is neither finished nor claimed. \return nullopt when there is none now
  /// \throws IoError
  std::optional<std::size_t> take();
  /// True when another process has taken over what is claimed; the work on it is then in vain.
  bool lost() const { return claim_ != nullptr && claim_->lost(); }
  /// Looks for it now, which costs a call to the file system.
  bool lost_now() const;
  /// Marks the piece that is claimed as finished. \pre its file of ids is there. \throws IoError
  void finish(const PieceResult& result);
  /// \return nullopt when the piece is not finished. \throws FormatError for another note; IoError
  std::optional<PieceResult> result(std::size_t index) const;

  enum class Join {
    mine,     ///< this process has claimed it, and all pieces are there
    others,   ///< another process was seen at work on it; holder() tells who
    unknown,  ///< another process had claimed it, and may have ended; or pieces were found missing: encode, or ask
              ///< again
  };
  /// Claims the joining of all pieces.
  Join take_join();
  const std::string& holder() const { return holder_; }
  /// The file to write, in this folder, for finish_join().
  std::filesystem::path unfinished_output() const;
  /// Gives the output its name, with the mode of the file that it replaces. \return false when the claim was lost
  bool publish_output();
  /// Notes that the output is complete, and removes the pieces.
  /// \return files of other pieces in the folder, which stay. \throws IoError
  std::int64_t finish_join();

 private:
  struct Piece {
    DataPiece input;
    std::string name;
    bool done = false;
    std::unique_ptr<ClaimWatch> watch;  ///< of a piece that another process was seen to hold
    std::chrono::steady_clock::time_point asked{};
  };

  std::filesystem::path note_file(std::size_t index) const { return folder_ / (pieces_[index].name + ".json"); }
  std::filesystem::path done_file() const;
  std::string state_of_outputs() const;
  void set_done(std::size_t index);
  bool claim(ClaimWatch& watch, const std::filesystem::path& directory);
  bool all_whole();

  Plan plan_;
  std::filesystem::path folder_;
  std::string plan_name_;  ///< hash of all pieces and of the layout
  std::vector<Piece> pieces_;
  std::size_t first_open_ = 0;  ///< all pieces before this one are done
  std::int64_t pieces_done_ = 0, own_ = 0, bytes_done_ = 0, bytes_total_ = 0;
  std::string holder_;
  std::optional<std::size_t> taken_;
  std::unique_ptr<ClaimWatch> join_watch_;
  Heartbeat heartbeat_;
  std::shared_ptr<Claim> claim_;  ///< of the piece, or of the joining
};

}  // namespace fsdp::detail
