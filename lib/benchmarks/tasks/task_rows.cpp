#include "lib/benchmarks/tasks/task_rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/benchmarks/tasks/text_source.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/parquet_documents.hpp"
#include "lib/formats/arrow/parquet_plugin.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;
constexpr std::size_t kMostRows = 4'000'000;

/// Whether `path`, below the folder of the data set, holds rows of the split by the names that the hub's data sets
/// have.
bool is_of_split(const std::filesystem::path& path, const std::string& config, const std::string& split) {
  const auto folder = path.parent_path().string(), name = path.filename().string();
  const auto suffix = path.extension();
  if (suffix != ".parquet" && suffix != ".jsonl" && suffix != ".json") return false;
  const bool named = name == split + suffix.string() || name.starts_with(split + "-") ||
                     name.starts_with(config + "-" + split + suffix.string()) || name.starts_with(split + "_0");
  const auto in = [&](const std::string& place) { return folder == place; };
  if (in(config.empty() ? "default/" + split : config + "/" + split) || in(config + "/partial-" + split))
    return suffix == ".parquet";
  if (config.empty()) return named && (in("") || in("data") || in("default"));
  return named && (in(config) || in("data/" + config));
}

/// The configurations whose folder holds a split.
std::set<std::string> configs_with(const std::vector<std::filesystem::path>& files, const std::string& split) {
  std::set<std::string> configs;
  for (const auto& file : files) {
    const auto top = file.begin()->string();
    if (file.has_parent_path() && is_of_split(file, top, split)) configs.insert(top);
  }
  return configs;
}

std::vector<ordered_json> rows_of(const std::filesystem::path& file) {
  const auto documents = data_file_kind(file) == DataFileKind::parquet || data_file_kind(file) == DataFileKind::arrow
                             ? open_parquet_records(file, parquet_columns(file))
                             : detail::open_json_records(file);
  std::vector<ordered_json> rows;
  std::string text;
  while (documents->next(text)) {
    ordered_json row;
    try {
      row = PythonJson(text).parse();
    } catch (const nlohmann::json::exception& error) {
      throw FormatError(documents->where() + ": " + detail::no_json(text, error.what()));
    } catch (const FormatError& error) {
      throw FormatError(documents->where() + ": " + error.what());
    }
    if (!row.is_object()) throw FormatError(documents->where() + ": is no object of columns");
    if (rows.size() == kMostRows) throw FormatError(fmt::format("{}: has more than {} rows", file.string(), kMostRows));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<std::string> splits_of(const Task& task, bool shots) {
  std::vector<std::string> splits{task.asked_split()};
  if (!shots || (task.fewshot_split.empty() && !task.samples.empty())) return splits;
  for (const auto* split : {&task.fewshot_split, &task.training_split, &task.validation_split, &task.test_split}) {
    if (split->empty()) continue;
    if (*split != splits.front()) splits.push_back(*split);
    break;
  }
  return splits;
}

std::string parquet_pattern(const Task& task, const std::string& split) {
  return (task.data.name.empty() ? "*" : task.data.name) + "/" + split + "/*.parquet";
}

std::vector<std::filesystem::path> task_files(const Task& task, const std::string& split, const DatasetFinder& find) {
  const auto& data = task.data;
  const bool by_files = data.path == "json" || data.path == "parquet";
  const auto folder = by_files ? data.folder : find(data.path);
  std::vector<std::filesystem::path> files;
  if (!data.files.is_null()) {
    const auto named = data.files.find(split);
    if (named == data.files.end())
      throw FormatError(fmt::format("{}: key 'dataset_kwargs': data_files has no split '{}'", task.file, split));
    for (const auto& name : named->is_array() ? *named : ordered_json::array({*named}))
      files.push_back(folder / name.get<std::string>());
    for (const auto& file : files) {
      if (!std::filesystem::exists(file))
        throw MissingInput(fmt::format("{}: {}: No such file", task.file, file.string()));
    }
    return files;
  }
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           folder, std::filesystem::directory_options::skip_permission_denied)) {
    if (!entry.is_directory()) all.push_back(entry.path().lexically_relative(folder));
  }
  std::sort(all.begin(), all.end());
  const auto take = [&](const std::string& config) {
    for (const auto& path : all) {
      if (is_of_split(path, config, split)) files.push_back(folder / path);
    }
  };
  take(data.name);
  if (files.empty() && data.name.empty()) {
    const auto configs = configs_with(all, split);
    if (configs.size() > 1)
      throw FormatError(fmt::format("{}: key 'dataset_name' is missing: {} has {}", task.file, folder.string(),
                                    fmt::join(configs, ", ")));
    if (configs.size() == 1) take(*configs.begin());
  }
  if (files.empty()) {
    throw MissingInput(
        fmt::format("{}: {} has no file of the split '{}'{}: none is called {}-*.parquet, or lies in {}/{}", task.file,
                    folder.string(), split, data.name.empty() ? "" : " of '" + data.name + "'", split,
                    data.name.empty() ? "default" : data.name, split));
  }
  return files;
}

std::vector<ordered_json> read_task_rows(const Task& task, const std::string& split, const DatasetFinder& find) {
  std::vector<ordered_json> rows;
  for (const auto& file : task_files(task, split, find)) {
    auto more = rows_of(file);
    std::move(more.begin(), more.end(), std::back_inserter(rows));
  }
  for (const auto& [name, source] : task.columns.items()) {
    const TextSource made(source, {}, task.file, "columns: " + name);
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i][name] = made.text(rows[i], fmt::format("row {} of {}", i, split));
  }
  return rows;
}

}  // namespace fsdp
