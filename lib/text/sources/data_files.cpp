#include "lib/text/sources/data_files.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/text/sources/file_names.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr std::array kKindNames{"Parquet", "JSON Lines", "CSV", "JSON", "text"};  // as NamedKind has them
constexpr std::size_t kChosenKinds = 3;  ///< of which a directory may have one; the others count in their absence

/// The contents of a directory.
struct Listing {
  std::array<Paths, kKindNames.size()> data;
  Paths companions, others;
};

/// Refuses what may be a part of the data and cannot be read.
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
  if (const auto command = detail::unpacking_command(path); !command.empty()) {
    throw FormatError(path.string() + ": is compressed or an archive: unpack it first with " + command +
                      std::string(name_others));
  }
  constexpr std::array<std::string_view, 6> tables{".arrow", ".feather", ".orc", ".avro", ".tfrecord", ".tfrecords"};
  const auto suffix = detail::lower_suffix(path);
  if (std::find(tables.begin(), tables.end(), suffix) == tables.end()) return;
  const auto saved = fs::exists(path.parent_path() / "state.json") && suffix == ".arrow";
  throw FormatError(path.string() + ": is " + detail::foreign_kind(path) +
                    (saved ? " of datasets.save_to_disk: write it as Parquet (load_from_disk(...).to_parquet(...))"
                           : ": give the data as Parquet, JSON Lines, CSV or plain text") +
                    std::string(name_others));
}

/// A link to a folder that it lies in would have no end.
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
    if (hidden || detail::is_companion(path)) {
      found.companions.push_back(path);
      continue;
    }
    check_entry(*entry);
    const auto kind = static_cast<std::size_t>(detail::kind_by_name(path));
    (kind < found.data.size() ? found.data[kind] : found.others).push_back(path);
  }
  for (auto& files : found.data) std::sort(files.begin(), files.end());
  return found;
}

/// Which of the kinds is read.
std::size_t choose_kind(const fs::path& directory, const Listing& found) {
  std::string several;
  auto chosen = found.data.size();
  for (std::size_t k = 0; k < found.data.size(); ++k) {
    const auto count = found.data[k].size();
    if (count == 0 || (k >= kChosenKinds && chosen < k)) continue;
    several += (several.empty() ? "" : " and ") + std::to_string(count) + " " + kKindNames[k];
    if (chosen < k) {
      throw UsageError(directory.string() + ": holds " + several +
                       " files, which may be the same data twice; name the files that are meant");
    }
    chosen = k;
  }
  if (chosen < found.data.size()) return chosen;
  auto rest = found.others;
  rest.insert(rest.end(), found.companions.begin(), found.companions.end());
  throw FormatError(directory.string() +
                    ": holds no data files (.parquet, .jsonl, .ndjson, .jsonlines, .jl, .csv, .tsv, .json, .txt)" +
                    (rest.empty() ? "" : ", but " + file_list(rest) + "; name the files that are meant"));
}

void add_directory(const fs::path& directory, DataFiles& all) {
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

std::string file_list(const Paths& files) {
  constexpr std::size_t most_characters = 300;
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (text.size() > most_characters) return text + " and " + std::to_string(files.size() - i) + " more";
    text += (i == 0 ? "" : ", ") + printable(files[i].string());
  }
  return text;
}

}  // namespace fsdp
