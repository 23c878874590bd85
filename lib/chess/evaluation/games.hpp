#pragma once
// Reads games of chess from data files, checks them against the rules and distributes them to all ranks in rounds.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

struct ChessGames {
  std::vector<std::string> texts;  ///< words separated by single spaces: the moves, then the result if known
  std::vector<std::size_t> moves;  ///< number of moves of each game
};

/// Counts the texts skipped so far because they are not games.
struct SkippedGames {
  std::int64_t count = 0;
  std::string first;  ///< location of the first skipped text and the reason
};

/// A source of games, which yields the same games on every rank.
class ChessGameSource {
 public:
  ChessGameSource() = default;
  ChessGameSource(const ChessGameSource&) = delete;
  ChessGameSource& operator=(const ChessGameSource&) = delete;
  virtual ~ChessGameSource() = default;

  /// \return the next games, at most `most`; none at the end. Collective
  virtual ChessGames next(std::size_t most) = 0;
  virtual const SkippedGames& skipped() const = 0;
  /// \return fraction of the data that has been read, 0 to 1
  virtual double share_read() const = 0;
  /// \return the name of the data, for messages
  virtual const std::string& name() const = 0;
};

/// Reads texts from JSON Lines, Parquet, CSV or plain files; each line of a text is a game in UCI notation, "e2e4 e7e5
/// ...", optionally followed by its result. Only rank 0 reads.
class ChessGameStream final : public ChessGameSource {
 public:
  /// Collective. \param field  see open_documents(); \param max_games  0: all
  /// \throws on every rank the exception that reading threw on rank 0
  ChessGameStream(ProcessGroup& world, const std::filesystem::path& data, const std::string& field,
                  std::int64_t max_games);
  ~ChessGameStream() override;

  /// \throws on every rank the exception that reading threw on rank 0
  ChessGames next(std::size_t most) override;
  const SkippedGames& skipped() const override { return skipped_; }
  double share_read() const override { return share_read_; }
  const std::string& name() const override { return name_; }

 private:
  class Reader;

  ProcessGroup& world_;
  std::string name_;
  std::unique_ptr<Reader> reader_;  ///< null except on rank 0
  SkippedGames skipped_;
  double share_read_ = 0;
};

/// Games held in memory, so that evaluations can repeat them even if the files change.
struct LoadedGames {
  std::string name;
  ChessGames games;
  SkippedGames skipped;
};

/// Reads all remaining games of a source. Collective.
LoadedGames load_games(ChessGameSource& source);

/// Yields loaded games, starting at the first. \param games  must outlive this object
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

// Tokenizes a game of chess and maps ids to the moves that they spell. Free of LibTorch.

/// The ids [first, end) of a sequence that spell a word and the space before it.
struct WordIds {
  std::size_t first = 0;
  std::size_t end = 0;
};

struct ChessSequence {
  std::vector<std::int32_t> ids;  ///< encoded like a document, without an end-of-text id
  std::vector<WordIds> words;     ///< the moves, then the result if the text has one
};

/// \param text  words separated by single spaces
/// \throws FormatError when decoding the ids does not give the text back, or an id spans the end of a word, because
/// then moves do not start at ids
ChessSequence encode_game(const Tokenizer& tokenizer, const std::string& text);

/// The set of a model's ids that end a word: ids that begin with white space, the end-of-text id, and ids unknown to
/// the tokenizer.
class WordEnds {
 public:
  /// \param num_ids  size of the model's vocabulary
  WordEnds(const Tokenizer& tokenizer, std::int64_t num_ids);

  bool begins_with_space(std::int32_t id) const { return kind(id) == Kind::space; }
  bool is_end_mark(std::int32_t id) const { return kind(id) == Kind::mark; }
  /// \return true when a word that precedes this id is complete
  bool ends_word(std::int32_t id) const { return kind(id) != Kind::inside; }

 private:
  enum class Kind : std::uint8_t { inside, space, mark };
  Kind kind(std::int32_t id) const { return element(kinds_, id); }

  std::vector<Kind> kinds_;
};

}  // namespace fsdp
