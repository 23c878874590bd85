#include "lib/chess/evaluation/games.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "lib/base/json_text.hpp"
#include "lib/chess/rules/game.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/text/sources/data_files.hpp"
#include "lib/text/sources/document_stream.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

/// Runs `work` on rank 0 and returns its result, or throws its error, on every rank.
json from_rank_0(ProcessGroup& world, const std::function<json()>& work) {
  return parse_json(text_of_root(world, [&] { return printable_json(work()); }), "a message of rank 0");
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

}  // namespace fsdp
