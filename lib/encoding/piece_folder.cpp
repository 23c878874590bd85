#include "lib/encoding/piece_folder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/encoding/fingerprint.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLongestNote = 4 << 20;

/// Size and time of a file; null when there is none.
nlohmann::json stamp_of(const fs::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) return nullptr;
  return {{"bytes", found.st_size}, {"modified", fmt::format("{}.{:09}", found.st_mtim.tv_sec, found.st_mtim.tv_nsec)}};
}

nlohmann::json to_json(const PieceResult& result) {
  return {{"documents", result.documents},
          {"tokens", result.tokens},
          {"cut", result.cut},
          {"skipped", result.skipped},
          {"first_skipped", result.first_skipped},
          {"lines", result.lines},
          {"bytes", result.bytes},
          {"ignored", result.ignored.to_json()}};
}

PieceResult read_note(const fs::path& file) {
  try {
    const auto note = parse_json(read_text_file(file, kLongestNote), file.string());
    PieceResult result{.documents = note.at("documents").get<std::int64_t>(),
                       .tokens = note.at("tokens").get<std::int64_t>(),
                       .cut = note.at("cut").get<std::int64_t>(),
                       .skipped = note.at("skipped").get<std::int64_t>(),
                       .first_skipped = note.at("first_skipped").get<std::string>(),
                       .lines = note.at("lines").get<std::int64_t>(),
                       .bytes = note.at("bytes").get<std::uint64_t>(),
                       .ignored = {}};
    const auto& ignored = note.at("ignored");
    for (const auto& [where, names] : ignored.items()) result.ignored.add(where, names.get<std::vector<std::string>>());
    return result;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(
        fmt::format("{}: is no note of a finished piece ({}): remove this file, and run the same command "
                    "again",
                    file.string(), error.what()));
  }
}

}  // namespace

PieceFolder::PieceFolder(fs::path output, std::vector<DataPiece> pieces, std::uint64_t encoding, std::uint64_t layout,
                         std::chrono::milliseconds takeover_after)
    : output_(std::move(output)),
      folder_(output_.string() + ".parts"),
      takeover_after_(takeover_after),
      heartbeat_(takeover_after / 6) {
  Fingerprint plan, of_file;
  plan.add(fmt::format("{}", layout));
  std::string last_file;
  for (auto& piece : pieces) {
    if (piece.file != last_file) {
      of_file = {};
      of_file.add(fmt::format("{}", encoding));
      of_file.add_data_file(piece.file);
      last_file = piece.file;
    }
    auto hash = of_file;
    hash.add(fmt::format("{} {}", piece.begin, piece.end));
    plan.add(fmt::format("{}", hash.value()));
    bytes_total_ += piece.bytes;
    pieces_.push_back({.input = std::move(piece), .name = fmt::format("piece-{:016x}", hash.value()), .watch = {}});
  }
  plan_ = plan.value();
  make_directories(folder_);
}

fs::path PieceFolder::ids_file(std::size_t index) const { return folder_ / (pieces_[index].name + ".ids"); }

fs::path PieceFolder::done_file() const { return folder_ / fmt::format("done-{:016x}.json", plan_); }

bool PieceFolder::is_complete() const {
  std::error_code error;
  if (!fs::exists(done_file(), error)) return false;
  const auto stamp = stamp_of(output_);
  return !stamp.is_null() && parse_json_or_discard(read_text_file(done_file(), kLongestNote), done_file()) == stamp;
}

PieceResult PieceFolder::result(std::size_t index) const { return read_note(note_file(index)); }

bool PieceFolder::look(std::size_t index) {
  auto& piece = pieces_[index];
  std::error_code error;
  if (piece.done || !fs::exists(note_file(index), error)) return piece.done;
  const auto result = read_note(note_file(index));
  if (const auto size = fs::file_size(ids_file(index), error); error || size != result.bytes) return false;
  piece.done = true;
  piece.watch.reset();
  ++done_.pieces;
  done_.documents += result.documents;
  done_.tokens += result.tokens;
  done_.bytes_read += piece.input.bytes;
  return true;
}

bool PieceFolder::all_done() {
  bool all = true;
  for (auto i = first_open_; i < pieces_.size(); ++i) {
    if (!look(i)) all = false;
    if (all) first_open_ = i + 1;
  }
  return all;
}

bool PieceFolder::claim(ClaimWatch& watch, const fs::path& directory) {
  const auto generation = watch.try_take();
  holder_ = watch.holder();
  if (!generation) return false;
  claim_ = std::make_shared<Claim>(directory, *generation);
  heartbeat_.add(claim_);
  return true;
}

std::optional<std::size_t> PieceFolder::take() {
  claim_.reset();
  for (auto i = first_open_; i < pieces_.size(); ++i) {
    auto& piece = pieces_[i];
    if (look(i)) continue;
    const auto directory = folder_ / (piece.name + ".claim");
    if (piece.watch == nullptr) piece.watch = std::make_unique<ClaimWatch>(directory, takeover_after_);
    if (!claim(*piece.watch, directory)) continue;
    piece.watch.reset();
    if (!look(i) && !is_complete()) return taken_ = i;
    claim_->end();  // it was finished between the look and the claim, and the pieces may be removed already
    claim_.reset();
    if (is_complete()) return {};
  }
  return {};
}

void PieceFolder::finish(const PieceResult& result) {
  publish_text(note_file(*taken_), json_text(to_json(result), 2));
  look(*taken_);
  ++own_;
  claim_->end();
  claim_.reset();
}

PieceFolder::Join PieceFolder::take_join() {
  const auto directory = folder_ / "join.claim";
  if (join_watch_ == nullptr) join_watch_ = std::make_unique<ClaimWatch>(directory, takeover_after_);
  if (claim(*join_watch_, directory)) return Join::mine;
  return join_watch_->owner_lives() ? Join::others : Join::unknown;
}

std::int64_t PieceFolder::finish_join() {
  std::int64_t others = 0;
  std::error_code ignored;
  // The note that all is done comes before the pieces go, so that no process takes them for missing.
  const auto note = json_text(stamp_of(output_), 2);
  std::set<std::string> names;
  for (const auto& piece : pieces_) names.insert(piece.name);
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(folder_, ignored), last; !ignored && entry != last; entry.increment(ignored)) {
    auto name = entry->path().filename().string();
    if (name.starts_with('.')) name.erase(0, 1);  // of a process that was killed, as what publish_text() leaves then
    if (name.starts_with("tmp.") || name.starts_with("done-") || names.contains(name.substr(0, name.find('.')))) {
      old.push_back(entry->path());
    } else if (name.starts_with("piece-")) {
      ++others;
    }
  }
  publish_text(done_file(), note);
  for (const auto& path : old) {
    if (path != done_file()) fs::remove_all(path, ignored);
  }
  claim_->end();
  claim_.reset();
  return others;
}

}  // namespace fsdp::detail
