#include "lib/chess/evaluation/games.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/chess/rules/game.hpp"
#include "lib/documents/data_files.hpp"
#include "lib/documents/documents.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

/// Runs `work` on rank 0 and returns its result, or throws its error, on every rank.
json from_rank_0(ProcessGroup& world, const std::function<json()>& work) {
  return parse_json(text_of_root(world, [&] { return printable_json(work()); }), "a message of rank 0");
}

constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

/// \return the offset of the end of each word in `text`, in bytes
std::vector<std::size_t> word_ends(const std::string& text) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || text[i + 1] == ' ') ends.push_back(i + 1);
  }
  return ends;
}

}  // namespace

class ChessGameStream::Reader {
 public:
  Reader(const std::filesystem::path& data, const std::string& field, std::int64_t max_games)
      : stream_(data_files({data}), {DataForm::text, field}, 0), max_games_(max_games) {}

  json next(std::size_t most) {
    ChessGames games;
    std::string line, where;
    while (games.texts.size() < most && (max_games_ == 0 || lines_ < max_games_) && next_line(line, where)) {
      ++lines_;
      add(line, where, games);
    }
    const double bytes = static_cast<double>(stream_.bytes_read()) /
                         static_cast<double>(std::max<std::int64_t>(1, stream_.bytes_total()));
    const double lines = max_games_ == 0 ? 0 : static_cast<double>(lines_) / static_cast<double>(max_games_);
    return {{"texts", games.texts},
            {"moves", games.moves},
            {"skipped", skipped_.count},
            {"first", skipped_.first},
            {"share", std::max(bytes, lines)}};
  }

 private:
  /// Reads the next line that is not blank. An empty text counts as one line, so that it is reported as skipped.
  bool next_line(std::string& line, std::string& where) {
    for (;;) {
      if (at_ >= text_.size()) {
        if (!stream_.next(text_)) return false;
        at_ = 0;
        line_number_ = 0;
        if (text_.empty()) {
          line.clear();
          where = stream_.where();
          return true;
        }
      }
      const auto end = std::min(text_.find('\n', at_), text_.size());
      line = text_.substr(at_, end - at_);
      at_ = end + 1;
      ++line_number_;
      if (line.find_first_not_of(" \t\r\v\f") == std::string::npos && text_.size() > line.size()) continue;
      const bool alone = line_number_ == 1 && at_ >= text_.size();
      where = alone ? stream_.where() : fmt::format("{}: line {}", stream_.where(), line_number_);
      return true;
    }
  }

  void add(const std::string& line, const std::string& where, ChessGames& games) {
    auto words = chess::split_game(line);
    auto problem = words.moves.empty() ? std::string("holds no move") : chess::replay(words.moves).problem;
    if (!problem.empty()) {
      if (skipped_.count++ == 0) skipped_.first = where + ": " + problem;
      return;
    }
    auto text = fmt::format("{}", fmt::join(words.moves, " "));
    if (words.result) text += fmt::format(" {}", chess::to_string(*words.result));
    games.texts.push_back(std::move(text));
    games.moves.push_back(words.moves.size());
  }

  DocumentStream stream_;
  std::int64_t max_games_;
  std::int64_t lines_ = 0;
  std::string text_;
  std::size_t at_ = 0;
  std::int64_t line_number_ = 0;
  SkippedGames skipped_;
};

ChessGameStream::ChessGameStream(ProcessGroup& world, const std::filesystem::path& data, const std::string& field,
                                 std::int64_t max_games)
    : world_(world), name_(data.string()) {
  from_rank_0(world, [&] {
    reader_ = std::make_unique<Reader>(data, field, max_games);
    return json::object();
  });
}

ChessGameStream::~ChessGameStream() = default;

ChessGames ChessGameStream::next(std::size_t most) {
  const auto round = from_rank_0(world_, [&] { return reader_->next(most); });
  skipped_ = {round["skipped"].get<std::int64_t>(), round["first"].get<std::string>()};
  share_read_ = round["share"].get<double>();
  return {round["texts"].get<std::vector<std::string>>(), round["moves"].get<std::vector<std::size_t>>()};
}

LoadedGames load_games(ChessGameSource& source) {
  constexpr std::size_t kAtOnce = 1024;
  LoadedGames loaded{source.name(), {}, {}};
  for (auto more = source.next(kAtOnce); !more.texts.empty(); more = source.next(kAtOnce)) {
    std::ranges::move(more.texts, std::back_inserter(loaded.games.texts));
    std::ranges::copy(more.moves, std::back_inserter(loaded.games.moves));
  }
  loaded.skipped = source.skipped();
  return loaded;
}

ChessGames LoadedGameSource::next(std::size_t most) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(most, games_.games.texts.size() - at_));
  const auto from = static_cast<std::ptrdiff_t>(at_);
  const auto texts = games_.games.texts.begin() + from;
  const auto moves = games_.games.moves.begin() + from;
  at_ += static_cast<std::size_t>(count);
  return {{texts, texts + count}, {moves, moves + count}};
}

double LoadedGameSource::share_read() const {
  return static_cast<double>(at_) / static_cast<double>(std::max<std::size_t>(1, games_.games.texts.size()));
}

ChessSequence encode_game(const Tokenizer& tokenizer, const std::string& text) {
  ChessSequence game;
  game.ids = prompt_ids(tokenizer, text);
  const auto bos = tokenizer.bos_id();
  std::size_t id = !game.ids.empty() && bos && game.ids.front() == *bos ? 1 : 0;

  std::string spelled;
  std::vector<std::size_t> ends(id, 0);  // end of each id in `spelled`, in bytes
  for (auto i = id; i < game.ids.size(); ++i) {
    spelled += tokenizer.decode_one(game.ids[i]);
    ends.push_back(spelled.size());
  }
  // Some tokenizers insert a space before every text.
  const std::size_t shift = spelled.size() == text.size() + 1 ? 1 : 0;
  if (spelled.substr(shift) != text || (shift == 1 && spelled[0] != ' ')) {
    throw FormatError(
        fmt::format("{} does not give back the text of a game: '{}'", tokenizer.description(), text.substr(0, 40)));
  }
  for (const auto end : word_ends(text)) {
    WordIds word{id, id};
    while (word.end < ends.size() && ends[word.end] <= end + shift) ++word.end;
    if (word.end == word.first || ends[word.end - 1] != end + shift) {
      throw FormatError(
          fmt::format("{} has a piece that holds the end of the word before '{}' and what follows: moves "
                      "cannot be told apart",
                      tokenizer.description(), text.substr(end, 8)));
    }
    id = word.end;
    game.words.push_back(word);
  }
  return game;
}

WordEnds::WordEnds(const Tokenizer& tokenizer, std::int64_t num_ids)
    : kinds_(static_cast<std::size_t>(num_ids), Kind::mark) {
  const auto known = std::min(num_ids, tokenizer.vocab_size());
  for (std::int64_t i = 0; i < known; ++i) {
    const auto text = tokenizer.decode_one(static_cast<std::int32_t>(i));
    const bool space = !text.empty() && kWhiteSpace.find(text[0]) != std::string_view::npos;
    element(kinds_, i) = space ? Kind::space : Kind::inside;
  }
  if (const auto end = tokenizer.eos_id(); end && *end < num_ids) element(kinds_, *end) = Kind::mark;
}

}  // namespace fsdp
