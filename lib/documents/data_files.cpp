#include "lib/documents/data_files.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/documents/file_kind.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr std::array<std::string_view, 7> kCompanionNames{
    "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
    "_success",          "_metadata",          "_common_metadata"};
constexpr std::array<std::string_view, 11> kCompanionStems{"readme",     "license", "licence",   "notice",
                                                           "citation",   "authors", "changelog", "sha256sum",
                                                           "sha256sums", "md5sum",  "md5sums"};
constexpr std::array<std::string_view, 14> kCompanionSuffixes{
    ".md", ".rst", ".py", ".sh", ".ipynb", ".yml", ".yaml", ".crc", ".sha256", ".md5", ".png", ".jpg", ".svg", ".gif"};

/// True for files that lie beside data and are never data: README, LICENSE, dataset_info.json, checksums, scripts,
/// pictures, hidden files.
bool is_companion(const std::filesystem::path& file) {
  const auto name = ascii_lower(file.filename().string());
  if (name.starts_with('.')) return true;
  const auto is = [&](std::string_view other) { return name == other; };
  const auto has_stem = [&](std::string_view stem) {
    return name.starts_with(stem) && (name.size() == stem.size() || name[stem.size()] == '.');
  };
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (std::any_of(kCompanionNames.begin(), kCompanionNames.end(), is)) return true;
  if (std::any_of(kCompanionSuffixes.begin(), kCompanionSuffixes.end(), ends)) return true;
  // "readme.txt" is a description, "readme.jsonl" may be data.
  const auto kind = detail::kind_by_name(file);
  return (kind == detail::NamedKind::other || kind == detail::NamedKind::text) &&
         detail::unpacking_command(file).empty() &&
         std::any_of(kCompanionStems.begin(), kCompanionStems.end(), has_stem);
}

constexpr std::array kKindNames{"Parquet", "JSON Lines", "CSV", "Arrow", "JSON", "text"};  // by NamedKind
constexpr std::size_t kChosenKinds = 4;  ///< only one of the first four kinds may be there

/// The contents of a directory.
struct Listing {
  std::array<Paths, kKindNames.size()> data;
  Paths companions, others;
};

/// Refuses files that may be a part of the data and cannot be read.
void check_entry(const fs::directory_entry& entry) {
  const auto& path = entry.path();
  constexpr std::string_view name_others = "; to do without it, name the files that are meant";
  if (!entry.exists()) {
    throw MissingInput(path.string() + ": is a link to " + fs::read_symlink(path).string() +
                       ", which is not there: fetch or copy the data again" + std::string(name_others));
  }
  if (!entry.is_regular_file()) {
    throw FormatError(path.string() + ": is a pipe, a socket or a device, a regular file is needed" +
                      std::string(name_others));
  }
  const bool is_known = detail::kind_by_name(path) != detail::NamedKind::other;
  if (const auto command = detail::unpacking_command(path); !command.empty() && !is_known) {
    throw FormatError(path.string() + ": is compressed or an archive: unpack it first with " + command +
                      std::string(name_others));
  }
  constexpr std::array<std::string_view, 5> tables{".feather", ".orc", ".avro", ".tfrecord", ".tfrecords"};
  const auto suffix = detail::lower_suffix(path);
  if (std::find(tables.begin(), tables.end(), suffix) == tables.end()) return;
  throw FormatError(path.string() + ": is " + detail::foreign_kind(path) +
                    ": give the data as Parquet, JSON Lines, CSV or plain text" + std::string(name_others));
}

/// Refuses a link to a folder that contains the link: following it would not end.
void refuse_loop(const fs::path& link, const fs::path& directory) {
  for (auto above = link.parent_path();; above = above.parent_path()) {
    if (fs::equivalent(link, above)) {
      throw FormatError(link.string() + ": is a link to a folder that it lies in; name the files that are meant");
    }
    if (above == directory || above.empty() || above == above.parent_path()) return;
  }
}

Listing list_directory(const fs::path& directory) {
  Listing found;
  using Walk = fs::recursive_directory_iterator;
  for (auto entry = Walk(directory, fs::directory_options::follow_directory_symlink); entry != Walk(); ++entry) {
    const auto& path = entry->path();
    const bool hidden = path.filename().string().starts_with('.');
    if (entry->is_directory()) {
      if (hidden) entry.disable_recursion_pending();
      if (entry->is_symlink()) refuse_loop(path, directory);
      continue;
    }
    if (hidden || is_companion(path)) {
      found.companions.push_back(path);
      continue;
    }
    check_entry(*entry);
    auto kind = to_index(detail::kind_by_name(path));
    // datasets keeps results of map() and filter() beside the data.
    if (path.extension() == ".arrow" && path.filename().string().starts_with("cache-")) kind = found.data.size();
    (kind < found.data.size() ? found.data[kind] : found.others).push_back(path);
  }
  for (auto& files : found.data) std::sort(files.begin(), files.end());
  return found;
}

/// Chooses the kind of files that is read.
std::size_t choose_kind(const fs::path& directory, const Listing& found) {
  std::string several;
  auto chosen = found.data.size();
  for (std::size_t k = 0; k < found.data.size(); ++k) {
    const auto count = found.data[k].size();
    if (count == 0 || (k >= kChosenKinds && chosen < k)) continue;
    several += (several.empty() ? "" : " and ") + std::to_string(count) + " " + kKindNames[k];
    if (chosen < k) {
      throw RequestError(directory.string() + ": holds " + several +
                         " files, which may be the same data twice; name the files that are meant");
    }
    chosen = k;
  }
  if (chosen < found.data.size()) return chosen;
  auto rest = found.others;
  rest.insert(rest.end(), found.companions.begin(), found.companions.end());
  throw FormatError(
      directory.string() +
      ": holds no data files (.parquet, .jsonl, .ndjson, .jsonlines, .jl, .csv, .tsv, .arrow, .json, .txt)" +
      (rest.empty() ? "" : ", but " + file_list(rest) + "; name the files that are meant"));
}

/// Refuses a DatasetDict of several splits: a test set among the data would be trained on.
void refuse_splits(const fs::path& directory) {
  if (!fs::exists(directory / "dataset_dict.json")) return;
  Paths splits;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (fs::exists(entry.path() / "state.json")) splits.push_back(entry.path());
  }
  std::sort(splits.begin(), splits.end());
  if (splits.size() > 1)
    throw RequestError(directory.string() + ": holds several splits; name the one that is meant: " + file_list(splits));
}

void add_directory(const fs::path& directory, DataFiles& all) {
  refuse_splits(directory);
  auto found = list_directory(directory);
  const auto chosen = choose_kind(directory, found);
  const auto append = [](Paths& to, const Paths& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (std::size_t k = 0; k < found.data.size(); ++k) append(k == chosen ? all.files : all.unread, found.data[k]);
  std::sort(found.others.begin(), found.others.end());
  std::sort(found.companions.begin(), found.companions.end());
  append(all.unread, found.others);
  append(all.companions, found.companions);
}

}  // namespace

DataFiles find_data_files(const Paths& inputs) {
  DataFiles all;
  for (const auto& input : inputs) {
    std::error_code error;
    const auto status = fs::status(input, error);
    if (!fs::exists(status)) {
      throw MissingInput(input.string() + ": " + (error ? error.message() : "No such file or directory"));
    }
    if (!fs::is_directory(status)) {
      if (!fs::is_regular_file(status)) {
        throw FormatError(input.string() + ": is a pipe or a device, a regular file is needed");
      }
      all.files.push_back(input);
      continue;
    }
    try {
      add_directory(input, all);
    } catch (const fs::filesystem_error& failure) {
      throw IoError(failure.path1().string() + ": cannot look for data files: " + failure.code().message());
    }
  }
  return all;
}

Paths data_files(const Paths& inputs) { return find_data_files(inputs).files; }

std::string file_list(const Paths& files, bool all) {
  constexpr std::size_t most_characters = 300;
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!all && text.size() > most_characters) return text + " and " + std::to_string(files.size() - i) + " more";
    text += (i == 0 ? "" : ", ") + printable(files[i].string());
  }
  return text;
}

}  // namespace fsdp
