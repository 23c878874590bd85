#include "lib/encoding/piece_folder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/encoding/fingerprint.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

/// "40 bytes, modified 1764534000.000000001" of a file; empty when there is none. It is opened, because NFS then
/// revalidates its attributes with the server.
std::string state_of(const fs::path& file) {
  try {
    const auto handle = File::open_read(file);
    struct stat found {};
    if (::fstat(handle.fd(), &found) != 0) return {};
    return fmt::format("{} bytes, modified {}.{:09}", found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
  } catch (const Error&) {
    return {};
  }
}

/// The text of a note; nothing when there is none, as it may have been removed since it was listed.
std::optional<std::string> read_if_there(const fs::path& file) {
  try {
    return read_text_file(file);
  } catch (const MissingInput&) {
    return {};
  }
}

/// Places without the file's name, which need not be UTF-8.
std::string without_file(const std::string& place, const DataPiece& piece) {
  const auto file = piece.file.string();
  return place.starts_with(file) ? place.substr(file.size()) : place;
}

nlohmann::json to_json(const PieceResult& result, const DataPiece& piece) {
  return {{"documents", result.documents},
          {"tokens", result.tokens},
          {"cut", result.cut},
          {"equal", result.equal},
          {"skipped", result.skipped},
          {"first_skipped", without_file(result.first_skipped, piece)},
          {"lines", result.lines},
          {"bytes", result.bytes},
          {"unread", result.unread}};
}

PieceResult parse_note(const std::string& text, const fs::path& file, const DataPiece& piece) {
  try {
    const auto note = parse_json(text, file.string());
    PieceResult result{.documents = note.at("documents").get<std::int64_t>(),
                       .tokens = note.at("tokens").get<std::int64_t>(),
                       .cut = note.at("cut").get<std::int64_t>(),
                       .equal = note.at("equal").get<std::int64_t>(),
                       .skipped = note.at("skipped").get<std::int64_t>(),
                       .first_skipped = note.at("first_skipped").get<std::string>(),
                       .lines = note.at("lines").get<std::int64_t>(),
                       .bytes = note.at("bytes").get<std::uint64_t>(),
                       .unread = note.at("unread").get<std::vector<std::string>>()};
    if (!result.first_skipped.empty()) result.first_skipped = piece.file.string() + result.first_skipped;
    return result;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(
        fmt::format("{}: is no note of a finished piece ({}): remove this file, and run the same command "
                    "again",
                    file.string(), error.what()));
  }
}

bool is_hash(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// True for "done-0123456789abcdef.json".
bool is_done_note(std::string_view name) {
  return name.starts_with("done-") && name.ends_with(".json") && is_hash(name.substr(5, name.size() - 10));
}

/// The hash and what comes before it in "piece-0123456789abcdef.ids", ".piece-0123456789abcdef.ids.TAG.tmp".
std::string_view stem_of(std::string_view name) {
  if (name.starts_with('.')) name.remove_prefix(1);  // of a process that was killed
  return name.substr(0, name.find('.'));
}

}  // namespace

PieceFolder::PieceFolder(Plan plan)
    : plan_(std::move(plan)), folder_(plan_.output.string() + ".parts"), heartbeat_(plan_.takeover_after / 6) {
  Fingerprint all, of_file;
  all.add(fmt::format("{}", plan_.layout));
  fs::path last_file;
  for (auto& piece : plan_.pieces) {
    if (piece.file != last_file) {
      of_file = {};
      of_file.add(fmt::format("{} {}", plan_.encoding, plan_.layout));
      of_file.add_data_file(piece.file);
      // The name decides how a file is read, and is in the places of its documents.
      of_file.add(piece.file.string());
      last_file = piece.file;
    }
    auto hash = of_file;
    hash.add(fmt::format("{} {}", piece.begin, piece.end));
    all.add(fmt::format("{}", hash.value()));
    bytes_total_ += piece.bytes;
    pieces_.push_back({.input = std::move(piece), .name = fmt::format("piece-{:016x}", hash.value()), .watch = {}});
  }
  plan_name_ = fmt::format("{:016x}", all.value());
  make_directories(folder_);
}

fs::path PieceFolder::ids_file(std::size_t index) const { return folder_ / (pieces_[index].name + ".ids"); }

fs::path PieceFolder::done_file() const { return folder_ / ("done-" + plan_name_ + ".json"); }

fs::path PieceFolder::unfinished_output() const { return folder_ / ("output-" + plan_name_ + ".h5"); }

std::string PieceFolder::state_of_outputs() const {
  auto state = state_of(plan_.output);
  for (const auto& file : plan_.also_written) {
    const auto other = state_of(file);
    if (state.empty() || other.empty()) return {};
    state += "; " + other;
  }
  return state;
}

bool PieceFolder::is_complete() const {
  const auto text = read_if_there(done_file());
  if (!text) return false;
  const auto note = parse_json_or_discard(*text, done_file());
  const auto state = state_of_outputs();
  return !state.empty() && note.is_object() && note.value("output", "") == state;
}

std::optional<PieceResult> PieceFolder::result(std::size_t index) const {
  const auto text = read_if_there(note_file(index));
  return text ? std::optional(parse_note(*text, note_file(index), pieces_[index].input)) : std::nullopt;
}

void PieceFolder::set_done(std::size_t index) {
  auto& piece = pieces_[index];
  if (piece.done) return;
  piece.done = true;
  piece.watch.reset();
  ++pieces_done_;
  bytes_done_ += piece.input.bytes;
}

bool PieceFolder::all_done() {
  // One listing instead of a look at each piece.
  std::set<std::string, std::less<>> notes;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), last; !error && entry != last; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.ends_with(".json") && name.starts_with("piece-")) notes.emplace(stem_of(name));
  }
  for (auto i = first_open_; i < pieces_.size(); ++i) {
    if (notes.contains(pieces_[i].name)) set_done(i);
  }
  while (first_open_ < pieces_.size() && pieces_[first_open_].done) ++first_open_;
  return first_open_ == pieces_.size();
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
  const auto now = std::chrono::steady_clock::now();
  claim_.reset();
  for (auto i = first_open_; i < pieces_.size(); ++i) {
    auto& piece = pieces_[i];
    // One that another process holds is asked for again now and then.
    const bool is_held = piece.watch != nullptr && now - piece.asked < plan_.takeover_after / 6;
    if (piece.done || is_held) continue;
    std::error_code error;
    if (fs::exists(note_file(i), error)) {
      set_done(i);
      continue;
    }
    const auto directory = folder_ / (piece.name + ".claim");
    if (piece.watch == nullptr) piece.watch = std::make_unique<ClaimWatch>(directory, plan_.takeover_after);
    piece.asked = now;
    if (!claim(*piece.watch, directory)) continue;
    piece.watch.reset();
    const bool is_made = is_complete();  // and the pieces may be removed already
    if (!is_made && !fs::exists(note_file(i), error)) return taken_ = i;
    claim_->end();  // it was finished between the look and the claim
    claim_.reset();
    if (is_made) return {};
    set_done(i);
  }
  return {};
}

bool PieceFolder::lost_now() const {
  if (claim_ == nullptr) return false;
  claim_->beat();
  return claim_->lost();
}

void PieceFolder::finish(const PieceResult& result) {
  publish_text(note_file(*taken_), json_text(to_json(result, pieces_[*taken_].input), 2));
  set_done(*taken_);
  ++own_;
  claim_->end();
  claim_.reset();
}

/// Looks at all pieces again, as they may have been removed or cut since they were finished.
bool PieceFolder::all_whole() {
  bool whole = true;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto note = result(i);
    std::error_code error;
    const auto size = fs::file_size(ids_file(i), error);
    if (note && !error && size == note->bytes) continue;
    whole = false;
    fs::remove(note_file(i), error);
    auto& piece = pieces_[i];
    if (!piece.done) continue;
    piece.done = false;
    --pieces_done_;
    bytes_done_ -= piece.input.bytes;
    first_open_ = std::min(first_open_, i);
  }
  return whole;
}

PieceFolder::Join PieceFolder::take_join() {
  const auto directory = folder_ / ("join-" + plan_name_ + ".claim");
  if (join_watch_ == nullptr) join_watch_ = std::make_unique<ClaimWatch>(directory, plan_.takeover_after);
  if (!claim(*join_watch_, directory)) return join_watch_->owner_lives() ? Join::others : Join::unknown;
  // The last owner may have written the output meanwhile.
  if (!is_complete() && all_whole()) return Join::mine;
  claim_->end();
  claim_.reset();
  return Join::unknown;
}

bool PieceFolder::publish_output() {
  if (lost_now()) return false;
  const auto target = seekable_output(plan_.output);
  keep_mode(target, unfinished_output());
  fs::rename(unfinished_output(), target);
  sync_directory(fs::absolute(target).parent_path());  // before the pieces go
  return true;
}

std::int64_t PieceFolder::finish_join() {
  std::set<std::string, std::less<>> names{"output-" + plan_name_};
  for (const auto& piece : pieces_) names.insert(piece.name);
  // The note that all is done comes before the pieces go, so that no process takes them for missing.
  publish_text(done_file(), json_text({{"output", state_of_outputs()}}, 2));
  const auto is_old = [&](const fs::path& file) {
    std::error_code none;
    const auto time = fs::last_write_time(file, none);
    return !none && fs::file_time_type::clock::now() - time > plan_.takeover_after;
  };
  std::int64_t others = 0;
  std::error_code error;
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(folder_, error), last; !error && entry != last; entry.increment(error)) {
    const auto text = entry->path().filename().string();
    const std::string_view name = text, stem = stem_of(name);
    if (names.contains(stem) || (is_done_note(name) && entry->path() != done_file())) {
      old.push_back(entry->path());
    } else if (stem.starts_with("piece-") && is_hash(stem.substr(6))) {
      ++others;
    } else if (name.starts_with(".tmp.") && is_hash(name.substr(5)) && is_old(entry->path())) {
      old.push_back(entry->path());  // a note that a killed process was publishing
    }
  }
  for (const auto& path : old) {
    // Folders are those of claims.
    if (path.extension() == ".claim") fs::remove_all(path, error);
    fs::remove(path, error);
  }
  claim_->end();
  claim_.reset();
  return others;
}

}  // namespace fsdp::detail
