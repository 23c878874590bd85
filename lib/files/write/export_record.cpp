#include "lib/files/write/export_record.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t limit_bytes = 64u << 20;
constexpr const char* format_name = "fsdp-export";
constexpr const char* aside_suffix = ".old";

using FileSizes = std::map<std::string, std::uint64_t>;

/// Nothing when there is no record that can be understood.
std::optional<FileSizes> read_record(const fs::path& directory) {
  std::error_code error;
  const auto file = directory / export_record_name;
  if (!fs::is_regular_file(fs::symlink_status(file, error))) return std::nullopt;
  try {
    const auto text = read_text_file(file, limit_bytes);
    const auto record = parse_json(text, file.string());
    if (record.at("format") != format_name || record.at("version") != 1) return std::nullopt;
    return record.at("files").get<FileSizes>();
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

std::string quoted(const fs::path& name) { return "'" + name.string() + "'"; }

}  // namespace

void write_export_record(const fs::path& directory, bool sync) {
  FileSizes files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = entry.file_size();
  }
  const nlohmann::json record{{"format", format_name}, {"version", 1}, {"files", files}};
  auto file = File::create(directory / export_record_name);
  file.write(json_text(record, 1) + "\n");
  if (sync) file.sync();
  file.close();
}

std::string export_obstacle(const fs::path& directory) {
  std::error_code error;
  const auto status = fs::symlink_status(directory, error);
  if (!fs::exists(status)) return "";
  if (!fs::exists(directory, error)) return "is a link that leads nowhere";
  if (!fs::is_directory(directory, error)) return "is a file";
  if (is_mount_point(directory)) return "is where a file system is mounted: name a new folder in it";
  const auto record = read_record(directory);
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const auto name = entry.path().filename();
    if (!record) {
      return "holds " + quoted(name) + " and is no earlier export (it has no record of one, " + export_record_name +
             "): nothing in it is replaced; choose another name, or remove it first";
    }
    if (name == export_record_name) continue;
    const auto listed = record->find(name.string());
    if (listed == record->end()) {
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
  if (error) return "cannot be read: " + error.message();
  return "";
}

void remove_export(const fs::path& directory, const fs::path& heir) {
  std::error_code error;
  if (const auto record = read_record(directory)) {
    for (const auto& [name, size] : *record) {
      if (fs::path(name).filename() == name) fs::remove(directory / name, error);
    }
    fs::remove(directory / export_record_name, error);
  }
  std::vector<fs::path> rest;
  for (const auto& entry : fs::directory_iterator(directory, error)) rest.push_back(entry.path());
  for (const auto& path : rest) {
    if (!fs::exists(fs::symlink_status(heir / path.filename(), error))) {
      fs::rename(path, heir / path.filename(), error);
    }
  }
  fs::remove(directory, error);  // only when it is empty
}

void restore_export(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(directory, error))) return;
  const auto parent = directory.has_parent_path() ? directory.parent_path() : fs::path(".");
  const auto prefix = "." + directory.filename().string() + ".tmp-";
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(aside_suffix)) continue;
    if (!read_record(entry.path()) || !export_obstacle(entry.path()).empty()) continue;
    fs::rename(entry.path(), directory, error);
    return;
  }
}

fs::path set_aside_name(const fs::path& temporary) {
  return temporary.parent_path() / (temporary.filename().string() + aside_suffix);
}

}  // namespace fsdp
