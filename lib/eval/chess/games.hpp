#pragma once
// Games of chess from data files, checked against the rules, handed to all ranks in rounds.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/mpi/process_group.hpp"

namespace fsdp {

struct ChessGames {
  std::vector<std::string> texts;  ///< words with one space between them: moves, then the result where there is one
  std::vector<std::size_t> moves;  ///< by game
};

/// Texts that are no games so far.
struct SkippedGames {
  std::int64_t count = 0;
  std::string first;  ///< where the first one is and what is wrong with it
};

/// Texts of JSON Lines, Parquet, CSV or plain files; each line of a text is a game in UCI notation, "e2e4 e7e5 ...",
/// with or without a result at its end. Rank 0 reads.
class ChessGameStream {
 public:
  /// Collective. \param field  as in open_documents(); \param max_games  0: all
  /// \throws on every rank what reading threw on rank 0
  ChessGameStream(ProcessGroup& world, const std::filesystem::path& data, const std::string& field,
                  std::int64_t max_games);
  ChessGameStream(const ChessGameStream&) = delete;
  ChessGameStream& operator=(const ChessGameStream&) = delete;
  ~ChessGameStream();

  /// The next games, up to `most`; none at the end. Collective: the same on every rank. \throws as the constructor
  ChessGames next(std::size_t most);
  const SkippedGames& skipped() const { return skipped_; }
  /// Of the files, 0 to 1.
  double share_read() const { return share_read_; }

 private:
  class Reader;

  ProcessGroup& world_;
  std::unique_ptr<Reader> reader_;  ///< on rank 0
  SkippedGames skipped_;
  double share_read_ = 0;
};

}  // namespace fsdp
