#pragma once
// Games of chess from data files, checked against the rules, handed to all ranks in rounds.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/ranks/process_group.hpp"

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

/// Games in rounds, the same ones on every rank.
class ChessGameSource {
 public:
  ChessGameSource() = default;
  ChessGameSource(const ChessGameSource&) = delete;
  ChessGameSource& operator=(const ChessGameSource&) = delete;
  virtual ~ChessGameSource() = default;

  /// The next games, up to `most`; none at the end. Collective: the same on every rank.
  virtual ChessGames next(std::size_t most) = 0;
  virtual const SkippedGames& skipped() const = 0;
  /// What has been handed out, 0 to 1.
  virtual double share_read() const = 0;
  /// The data, for messages.
  virtual const std::string& name() const = 0;
};

/// Texts of JSON Lines, Parquet, CSV or plain files; each line of a text is a game in UCI notation, "e2e4 e7e5 ...",
/// with or without a result at its end. Rank 0 reads.
class ChessGameStream final : public ChessGameSource {
 public:
  /// Collective. \param field  as in open_documents(); \param max_games  0: all
  /// \throws on every rank what reading threw on rank 0
  ChessGameStream(ProcessGroup& world, const std::filesystem::path& data, const std::string& field,
                  std::int64_t max_games);
  ~ChessGameStream() override;

  /// \throws as the constructor
  ChessGames next(std::size_t most) override;
  const SkippedGames& skipped() const override { return skipped_; }
  double share_read() const override { return share_read_; }
  const std::string& name() const override { return name_; }

 private:
  class Reader;

  ProcessGroup& world_;
  std::string name_;
  std::unique_ptr<Reader> reader_;  ///< on rank 0
  SkippedGames skipped_;
  double share_read_ = 0;
};

/// Games in memory, to be played again and again whatever becomes of their files.
struct LoadedGames {
  std::string name;
  ChessGames games;
  SkippedGames skipped;
};

/// All that a source has left. Collective.
LoadedGames load_games(ChessGameSource& source);

/// From the first game on. \param games  must outlive it
class LoadedGameSource final : public ChessGameSource {
 public:
  explicit LoadedGameSource(const LoadedGames& games) : games_(games) {}
  ChessGames next(std::size_t most) override;
  const SkippedGames& skipped() const override { return games_.skipped; }
  double share_read() const override;
  const std::string& name() const override { return games_.name; }

 private:
  const LoadedGames& games_;
  std::size_t at_ = 0;
};

}  // namespace fsdp
