#include "lib/checkpoints/target/output_directory.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/process/process_identity.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRecordBytes = 64u << 20;
constexpr const char* kRecordFormat = "fsdp-export";
constexpr const char* kAsideSuffix = ".old";

using FileSizes = std::map<std::string, std::uint64_t>;

struct ExportRecord {
  FileSizes files;
  std::string made_by;
};

/// Reads the record of a directory; returns nothing when there is none that can be understood.
std::optional<ExportRecord> read_record(const fs::path& directory) {
  std::error_code error;
  const auto file = directory / kExportRecordName;
  if (!fs::is_regular_file(fs::symlink_status(file, error))) return std::nullopt;
  try {
    const auto text = read_text_file(file, kMaxRecordBytes);
    const auto record = parse_json(text, file.string());
    if (record.at("format") != kRecordFormat || record.at("version") != 1) return std::nullopt;
    return ExportRecord{record.at("files").get<FileSizes>(), record.value("run", std::string())};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_mount_point(const fs::path& directory) {
  struct stat here {
  }, above{};
  return ::stat(directory.c_str(), &here) == 0 && ::stat((directory / "..").c_str(), &above) == 0 &&
         (here.st_dev != above.st_dev || here.st_ino == above.st_ino);
}

/// True for a folder of files in the record.
bool is_folder_of(const FileSizes& record, const fs::directory_entry& entry, const fs::path& name) {
  std::error_code error;
  const auto first = record.lower_bound(name.generic_string() + "/");
  return fs::is_directory(entry.symlink_status(error)) && first != record.end() &&
         first->first.starts_with(name.generic_string() + "/");
}

/// True for the name of a file in the directory or in a folder of it.
bool is_inside(const fs::path& name) {
  return !name.empty() && name.is_relative() && name == name.lexically_normal() && *name.begin() != "..";
}

/// Begin of the names of the temporary directories of an output, which are beside it.
std::string temporary_prefix(const fs::path& output) {
  constexpr std::size_t kLongestName = 200;
  return "." + output.filename().string().substr(0, kLongestName) + ".tmp-";
}

std::string quoted(const fs::path& name) { return "'" + name.string() + "'"; }

[[noreturn]] void fail(const fs::path& path, const char* what, const std::error_code& error) {
  throw IoError(path.string() + ": cannot " + what + ": " + error.message());
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// The output path without a slash at its end.
fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

/// Renames the output. Without `replace` this fails when `to` exists, and leaves it as it is.
void rename_or_fail(const fs::path& from, const fs::path& to, bool replace) {
  if (!replace) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
    const bool cannot = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
    // A hard link fails when the name exists, also on file systems that cannot rename without replacing.
    if (cannot && !fs::is_directory(from)) {
      if (::link(from.c_str(), to.c_str()) == 0) {
        ::unlink(from.c_str());
        return;
      }
      if (errno != EEXIST && !is_there(to)) return rename_or_fail(from, to, true);
      errno = EEXIST;
    }
    if (errno == EEXIST) {
      throw RequestError(to.string() + ": came into being meanwhile and stays", Remedy::overwrite);
    }
    if (!cannot) fail(to, "give the finished output this name", {errno, std::system_category()});
  }
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(to, "give the finished output this name", error);
}

void check_size_limit(const Layout& layout) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  for (const auto& file : layout.files) {
    if (file.size_bytes > limit.rlim_cur) {
      throw IoError(file.name.string() + ": needs " + std::to_string(file.size_bytes) +
                    " bytes, but files of at most " + std::to_string(limit.rlim_cur) +
                    " bytes may be written here (ulimit -f)");
    }
  }
}

void check_free_space(const Layout& layout, const fs::path& directory, const fs::path& output) {
  std::uint64_t needed = 0;
  for (const auto& file : layout.files) needed += file.size_bytes;
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0 || status.f_blocks == 0) return;  // no size is reported
  const auto available = std::uint64_t{status.f_bavail} * status.f_frsize;
  if (needed > available) {
    throw IoError(output.string() + ": the output needs " + std::to_string(needed) + " bytes, but only " +
                  std::to_string(available) + " are free on this file system; nothing was written");
  }
}

}  // namespace

void write_export_record(const fs::path& directory, bool sync, const std::string& made_by) {
  FileSizes files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_directory()) files[entry.path().lexically_relative(directory).generic_string()] = entry.file_size();
  }
  nlohmann::json record{{"format", kRecordFormat}, {"version", 1}, {"files", files}};
  if (!made_by.empty()) record["run"] = made_by;
  auto file = File::create(directory / kExportRecordName);
  file.write(json_text(record, 1) + "\n");
  if (sync) file.sync();
  file.close();
}

fs::path run_of_export(const fs::path& directory) {
  const auto record = read_record(directory);
  if (!record || record->made_by.empty()) return {};
  std::error_code error;
  return fs::weakly_canonical(fs::canonical(directory, error) / record->made_by, error);
}

std::string export_obstacle(const fs::path& directory) {
  std::error_code error;
  const auto status = fs::symlink_status(directory, error);
  if (!fs::exists(status)) return "";
  if (!fs::exists(directory, error)) return "is a link that leads nowhere";
  if (!fs::is_directory(directory, error)) return "is a file";
  if (is_mount_point(directory)) return "is where a file system is mounted: name a new folder in it";
  const auto record = read_record(directory);
  fs::path name;  // of the entry that was looked at last
  for (fs::recursive_directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const auto& entry = *at;
    name = entry.path().lexically_relative(directory);
    if (!record) {
      return "holds " + quoted(name) + " and is no earlier export (it has no record of one, " + kExportRecordName +
             "): nothing in it is replaced; choose another name, or remove it first";
    }
    if (name == kExportRecordName || is_folder_of(record->files, entry, name)) continue;
    const auto listed = record->files.find(name.generic_string());
    if (listed == record->files.end()) {
      return "holds " + quoted(name) +
             ", which is no part of the earlier export there: nothing in it is replaced; "
             "choose another name, or move that away first";
    }
    std::error_code failed;
    if (!fs::is_regular_file(entry.symlink_status(failed)) || entry.file_size(failed) != listed->second || failed) {
      return "holds " + quoted(name) +
             ", which is not as it was exported: nothing in it is replaced; choose another "
             "name, or remove it first";
    }
  }
  if (!error) return "";
  return (name.empty() ? "" : "holds " + quoted(name) + ", which ") + "cannot be read: " + error.message();
}

void remove_export(const fs::path& directory, const fs::path& heir) {
  std::error_code error;
  if (const auto record = read_record(directory)) {
    for (const auto& [name, size] : record->files) {
      if (is_inside(name)) fs::remove(directory / name, error);
    }
    for (const auto& [name, size] : record->files) {  // folders, unless something else is in them
      for (auto folder = fs::path(name).parent_path(); is_inside(name) && !folder.empty();
           folder = folder.parent_path())
        fs::remove(directory / folder, error);
    }
    fs::remove(directory / kExportRecordName, error);
  }
  std::vector<fs::path> rest;
  for (const auto& entry : fs::directory_iterator(directory, error)) rest.push_back(entry.path());
  for (const auto& path : rest) {
    if (!fs::exists(fs::symlink_status(heir / path.filename(), error))) {
      fs::rename(path, heir / path.filename(), error);
    }
  }
  fs::remove(directory, error);  // fails unless the directory is empty
}

void restore_export(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(directory, error))) return;
  const auto parent = directory.has_parent_path() ? directory.parent_path() : fs::path(".");
  const auto prefix = temporary_prefix(directory);
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kAsideSuffix)) continue;
    if (!read_record(entry.path()) || !export_obstacle(entry.path()).empty()) continue;
    fs::rename(entry.path(), directory, error);
    return;
  }
}

void remove_remains(const fs::path& output) {
  constexpr std::uint64_t kMostBytes = 1u << 16;
  std::error_code error;
  const auto parent = output.has_parent_path() ? output.parent_path() : fs::path(".");
  const auto prefix = temporary_prefix(output);
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (!entry.path().filename().string().starts_with(prefix) || !fs::is_directory(entry.symlink_status(error)))
      continue;
    const auto maker = entry.path() / kMakerName;
    if (!fs::is_regular_file(fs::symlink_status(maker, error))) continue;
    try {
      if (ProcessIdentity::from_json(read_text_file(maker, kMostBytes)).surely_gone())
        fs::remove_all(entry.path(), error);
    } catch (const Error&) {
      // Nothing says who made it: it stays.
    }
  }
}

fs::path set_aside_name(const fs::path& temporary) {
  return temporary.parent_path() / (temporary.filename().string() + kAsideSuffix);
}

namespace detail {

OutputDirectory::OutputDirectory(const Source& source, const Layout& layout, const fs::path& output, bool is_directory,
                                 bool overwrite)
    : layout_(layout), output_(without_slash(output)), is_directory_(is_directory), overwrite_(overwrite) {
  if (!output_.has_filename() || output_.filename() == "." || output_.filename() == "..") {
    throw RequestError("'" + output.string() + "' is no name for an output");
  }
  std::error_code ignored;
  // A link is kept: its target is replaced.
  if (is_directory_ && fs::is_directory(output_, ignored)) output_ = fs::canonical(output_, ignored);
  if (is_directory_) restore_export(output_);
  if (!is_directory_) {
    for (const auto& file : layout_.files) destinations_.push_back(seekable_output(output_.parent_path() / file.name));
    output_ = seekable_output(output_);
  }
  parent_ = output_.has_parent_path() ? output_.parent_path() : fs::path(".");
  if (is_directory_) {
    check_target(output_, overwrite);
  } else {
    for (const auto& path : destinations_) check_target(path, overwrite);
  }
  check_input(source);
  make_temporary();
}

OutputDirectory::~OutputDirectory() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void OutputDirectory::check_target(const fs::path& path, bool overwrite) const {
  if (!is_there(path)) return;
  std::error_code ignored;
  const bool directory = fs::is_directory(path, ignored);
  const bool has_content = !directory || !is_directory_ || !fs::is_empty(path, ignored);
  if (has_content && !overwrite) throw RequestError(path.string() + ": exists", Remedy::overwrite);
  if (directory != is_directory_) {
    throw RequestError(path.string() + ": is " + (directory ? "a directory" : "a file") + ", the output " +
                       (is_directory_ ? "a directory" : "a file") + ": remove it first or choose another name");
  }
  if (!directory) return;
  const auto obstacle = export_obstacle(path);
  if (!obstacle.empty()) throw RequestError(path.string() + ": " + obstacle);
}

void OutputDirectory::check_input(const Source& source) const {
  std::vector<fs::path> written;
  if (is_directory_) {
    written.push_back(output_);
  } else {
    written = destinations_;
  }
  for (const auto& file : source.info().files) {
    for (const auto& path : written) {
      if (path_below(file, path)) throw RequestError(output_.string() + ": would replace the input " + file.string());
    }
  }
}

void OutputDirectory::make_temporary() {
  constexpr int tries = 100;
  remove_remains(output_);
  const auto name = temporary_prefix(output_) + process_tag();
  for (int i = 0; i < tries; ++i) {
    auto candidate = parent_ / (i == 0 ? name : name + "-" + std::to_string(i));
    std::error_code error;
    if (fs::create_directory(candidate, error)) {
      temporary_ = std::move(candidate);
      return name_maker();
    }
    if (error) fail(output_, "write here", error);
  }
  throw IoError((parent_ / name).string() + ": is in the way, and so are others like it; remove them");
}

void OutputDirectory::name_maker() {
  try {
    auto file = File::create_new(temporary_ / kMakerName);
    file.write(ProcessIdentity::own().to_json());
    file.close();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
    throw;
  }
}

void OutputDirectory::create_files() const {
  check_size_limit(layout_);
  check_free_space(layout_, temporary_, output_);
  for (const auto& file : layout_.files) {
    std::error_code error;
    fs::create_directories((temporary_ / file.name).parent_path(), error);
    if (error) fail(output_, "write here", error);
    auto created = File::create(temporary_ / file.name);
    created.truncate(file.size_bytes);
    created.close();
  }
}

void OutputDirectory::write(const std::vector<LayoutLiteral>& literals) const {
  File file;
  std::size_t open = layout_.files.size();
  for (const auto& literal : literals) {
    if (literal.file != open) {
      if (file.is_open()) file.close();
      file = File::open_write(temporary_ / layout_.files[literal.file].name);
      open = literal.file;
    }
    file.write_at(literal.offset_bytes, std::as_bytes(std::span(literal.bytes.data(), literal.bytes.size())));
  }
  if (file.is_open()) file.close();
}

/// The name refers to the whole old export or the whole new one at any moment. Where the file system cannot exchange
/// two names it is missing for a moment; restore_export() repairs this after a kill.
void OutputDirectory::publish_directory() {
  std::error_code error;
  if (!is_there(output_) || fs::is_empty(output_, error)) {
    if (const auto status = fs::status(output_, error); fs::is_directory(status)) {
      fs::permissions(temporary_, status.permissions(), error);
    }
    return rename_or_fail(temporary_, output_, true);  // fails when the directory is no longer empty
  }
  if (!overwrite_) {
    throw RequestError(output_.string() + ": came into being meanwhile and stays", Remedy::overwrite);
  }
  const auto obstacle = export_obstacle(output_);  // the directory may have changed since the start
  if (!obstacle.empty()) throw RequestError(output_.string() + ": " + obstacle);
  fs::permissions(temporary_, fs::status(output_, error).permissions(), error);
  auto old = std::exchange(temporary_, {});  // from here on the destructor must not remove it
  if (!exchange_names(old, output_)) {
    const auto aside = set_aside_name(old);
    rename_or_fail(output_, aside, true);
    fs::rename(old, output_, error);
    if (error) {
      temporary_ = old;
      std::error_code ignored;
      fs::rename(aside, output_, ignored);
      fail(output_, "give the finished output this name", error);
    }
    old = aside;
  }
  remove_export(old, output_);
}

void OutputDirectory::publish(bool sync, const std::string& made_by) {
  std::error_code ignored;
  fs::remove(temporary_ / kMakerName, ignored);
  if (is_directory_) write_export_record(temporary_, sync, made_by);
  if (sync) {
    std::set<fs::path> folders{temporary_};
    for (const auto& file : layout_.files) {
      File::open_write(temporary_ / file.name).sync();
      folders.insert((temporary_ / file.name).parent_path());
    }
    for (const auto& folder : folders) sync_directory(folder);
  }
  if (is_directory_) {
    publish_directory();
  } else {
    // The requested file comes last: it appears only after the files that belong to it.
    for (auto i = layout_.files.size(); i-- > 0;) {
      keep_mode(destinations_[i], temporary_ / layout_.files[i].name);
      rename_or_fail(temporary_ / layout_.files[i].name, destinations_[i], overwrite_);
    }
  }
  if (sync) sync_directory(parent_);
}

}  // namespace detail

bool exchange_names(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail(b, "give the finished output this name", {errno, std::system_category()});
}

}  // namespace fsdp
