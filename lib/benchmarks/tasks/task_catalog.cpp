#include "lib/benchmarks/tasks/task_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>

#include "lib/base/files/file.hpp"
#include "lib/base/text/nearest_name.hpp"
#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/benchmarks/tasks/shipped_tasks.hpp"
#include "lib/formats/yaml/yaml_value.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;
constexpr std::uint64_t kMostFile_bytes = 1 << 20;
constexpr int kMostIncludes = 10;

ordered_json json_of(const YamlValue& value) {
  using enum YamlValue::Kind;
  switch (value.kind) {
    case null:
      return nullptr;
    case boolean:
      return value.text == "true";
    case number: {
      const auto* end = value.text.data() + value.text.size();
      std::int64_t integer = 0;
      if (const auto read = std::from_chars(value.text.data(), end, integer); read.ptr == end && read.ec == std::errc())
        return integer;
      double real = 0;
      std::from_chars(value.text.data(), end, real);
      return real;
    }
    case text:
      if (!value.tag.empty()) return {{value.tag, value.text}};  // "!function": refused by the key that has it
      return value.text;
    case list: {
      auto items = ordered_json::array();
      for (const auto& item : value.items) items.push_back(json_of(item));
      return items;
    }
    case map:
      break;
  }
  auto entries = ordered_json::object();
  for (const auto& entry : value.entries) entries[entry.key] = json_of(entry.value);
  return entries;
}

ordered_json keys_of(const std::string& text, const std::string& file) {
  try {
    if (!file.ends_with(".json")) return json_of(read_yaml(text, YamlTags::kept));
    return PythonJson(text).parse();
  } catch (const FormatError& error) {
    throw FormatError(file + ": " + error.what());
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(fmt::format("{}: is no JSON: {}", file, error.what()));
  }
}

bool is_task_file(const std::filesystem::path& file) {
  const auto suffix = file.extension();
  return suffix == ".yaml" || suffix == ".yml" || suffix == ".json";
}

/// Keys of the files that `include` names, under those of this one.
ordered_json with_included(ordered_json keys, const std::string& file, const std::filesystem::path& folder,
                           int level = 0) {
  const auto included = keys.find("include");
  if (included == keys.end()) return keys;
  if (level == kMostIncludes) throw FormatError(file + ": key 'include': files include each other");
  const auto names = included->is_array() ? *included : ordered_json::array({*included});
  keys.erase(included);
  auto all = ordered_json::object();
  for (const auto& name : names) {
    if (!name.is_string()) throw FormatError(file + ": key 'include': is no file");
    ordered_json base;
    const auto text = name.get<std::string>();
    if (folder.empty()) {  // a shipped one
      base = with_included(keys_of(std::string(shipped_task(text)), text), text, folder, level + 1);
    } else {
      const auto path = folder / text;
      std::error_code error;
      if (!std::filesystem::exists(path, error))
        throw FormatError(fmt::format("{}: key 'include': {}: No such file or directory", file, path.string()));
      base = with_included(keys_of(read_text_file(path, kMostFile_bytes), path.string()), path.string(),
                           path.parent_path(), level + 1);
    }
    if (!base.is_object()) throw FormatError(file + ": key 'include': " + text + " is no mapping of keys to values");
    for (auto& [key, value] : base.items()) all[key] = std::move(value);
  }
  for (auto& [key, value] : keys.items()) all[key] = std::move(value);
  return all;
}

std::vector<std::string> texts_of(const ordered_json& value) {
  std::vector<std::string> all;
  if (value.is_string()) all.push_back(value.get<std::string>());
  if (value.is_array()) {
    for (const auto& one : value) {
      if (one.is_string()) all.push_back(one.get<std::string>());
    }
  }
  return all;
}

}  // namespace

TaskCatalog::TaskCatalog() {
  for (const auto& [file, text] : shipped_tasks()) {
    if (!file.starts_with('_')) add({keys_of(std::string(text), std::string(file)), std::string(file), {}, true});
  }
}

void TaskCatalog::add(Entry entry) {
  const bool is_group = entry.is_group();
  const auto& name = entry.keys[is_group ? "group" : "task"];
  if (!name.is_string() || name.get<std::string>().empty())
    throw FormatError(fmt::format("{}: key '{}': is no name", entry.file, is_group ? "group" : "task"));
  // Members that a group's file describes itself.
  if (is_group && entry.keys.contains("task") && entry.keys["task"].is_array()) {
    for (const auto& member : entry.keys["task"]) {
      if (member.is_object()) add({member, entry.file, entry.folder, entry.is_shipped});
    }
  }
  const auto text = name.get<std::string>();
  if (const auto before = entries_.find(text); before != entries_.end() && !before->second.is_shipped) {
    if (before->second.file == entry.file && before->second.keys == entry.keys) return;
    throw FormatError(fmt::format("{}: the name '{}' is that of {}, too", entry.file, text, before->second.file));
  }
  entries_[text] = std::move(entry);
}

void TaskCatalog::add_file(const std::filesystem::path& file, bool must_be_task) {
  auto keys = keys_of(read_text_file(file, kMostFile_bytes), file.string());
  const auto absolute = std::filesystem::absolute(file).parent_path();
  // A name may come from an included file.
  auto all = keys.is_object() && !keys.contains("task") && !keys.contains("group") && must_be_task
                 ? with_included(keys, file.string(), absolute)
                 : keys;
  if (all.is_object() && (all.contains("task") || all.contains("group"))) {
    add({std::move(all), file.string(), absolute, false});
  } else if (must_be_task) {
    throw FormatError(file.string() + ": is no task file: it has neither a key 'task' nor a key 'group'");
  }
}

void TaskCatalog::add_folder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  constexpr auto kSkip = std::filesystem::directory_options::skip_permission_denied;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, kSkip)) {
    if (entry.is_regular_file() && is_task_file(entry.path()) && !entry.path().filename().string().starts_with('.'))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    // Data sets, too, have .json files.
    if (file.extension() == ".json" && std::filesystem::file_size(file) > kMostFile_bytes) continue;
    try {
      add_file(file, false);
    } catch (const FormatError&) {
      if (file.extension() != ".json") throw;
    }
  }
}

std::vector<std::string> TaskCatalog::names_in(const std::filesystem::path& place) const {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(place, error);
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.is_shipped) continue;
    const auto relative = std::filesystem::path(entry.file).lexically_relative(place);
    const bool is_here = is_folder ? !relative.empty() && *relative.begin() != ".." : entry.file == place.string();
    if (is_here) names.push_back(name);
  }
  return names;
}

std::vector<std::string> TaskCatalog::tagged(const std::string& tag) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    const auto tags = entry.keys.contains("tag") ? texts_of(entry.keys["tag"]) : std::vector<std::string>();
    if (std::find(tags.begin(), tags.end(), tag) != tags.end()) names.push_back(name);
  }
  return names;
}

/// Collects what was asked for.
class TaskCatalog::Selecting {
 public:
  explicit Selecting(const TaskCatalog& catalog) : catalog_(catalog) {}

  /// \param by  "group NAME: " where a group asks for it, for the message
  void take(const std::string& name, const std::string& by) {
    const auto found = catalog_.entries_.find(name);
    if (found == catalog_.entries_.end()) return take_tag(name, by);
    const auto& entry = found->second;
    if (!taken_.insert(name).second) return;
    const auto keys = with_included(entry.keys, entry.file, entry.folder);
    if (!entry.is_group()) {
      selection_.tasks.push_back(task_of(keys, entry.file, entry.folder));
      return;
    }
    std::vector<std::string> members;
    const auto listed = keys.contains("task") ? keys["task"] : ordered_json();
    for (const auto& member : listed.is_array() ? listed : ordered_json::array({listed})) {
      const auto& of_member = member.is_object() ? member[member.contains("group") ? "group" : "task"] : member;
      if (!of_member.is_string())
        throw FormatError(entry.file + ": key 'task': is no list of tasks, which a group has");
      // A tag stands for its tasks.
      const auto named = of_member.get<std::string>();
      const auto tagged = catalog_.entries_.contains(named) ? std::vector<std::string>() : catalog_.tagged(named);
      for (const auto& one : tagged.empty() ? std::vector{named} : tagged) {
        members.push_back(one);
        take(one, "group " + name + ": ");
      }
    }
    selection_.groups.push_back(group_of(keys, entry.file, std::move(members)));
  }

  TaskSelection result() { return std::move(selection_); }

 private:
  void take_tag(const std::string& tag, const std::string& by) {
    const auto tagged = catalog_.tagged(tag);
    for (const auto& name : tagged) take(name, by);
    if (!tagged.empty()) return;
    NearestName nearest(tag);
    for (const auto& [name, entry] : catalog_.entries_) nearest.offer(name, name);
    const auto problem = fmt::format("{}there is no task, group or task file '{}'", by, tag);
    if (nearest.name().empty()) throw RequestError(problem, Remedy::list_tasks);
    throw RequestError(problem + "; did you mean '" + nearest.name() + "'?");
  }

  const TaskCatalog& catalog_;
  std::set<std::string> taken_;
  TaskSelection selection_;
};

TaskSelection TaskCatalog::select(const std::vector<std::string>& wanted) {
  std::set<std::filesystem::path> added;
  std::vector<std::string> names;
  for (const auto& name : wanted) {
    std::error_code error;
    const std::filesystem::path place(name);
    if (std::filesystem::is_directory(place, error)) {
      if (added.insert(place).second) add_folder(place);
      const auto here = names_in(place);
      if (here.empty()) throw MissingInput(name + ": no task file is there (.yaml, .yml or .json with a key 'task')");
      names.insert(names.end(), here.begin(), here.end());
    } else if (is_task_file(place)) {
      if (!std::filesystem::exists(place, error)) throw MissingInput(name + ": No such file or directory");
      add_file(place, true);
      // Groups name tasks of the files beside them.
      const auto folder = place.has_parent_path() ? place.parent_path() : std::filesystem::path(".");
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (!entry.is_regular_file() || !is_task_file(entry.path()) || std::filesystem::equivalent(entry.path(), place))
          continue;
        try {
          add_file(entry.path(), false);
        } catch (const FormatError&) {
          continue;  // is none, or stands for another name: what is asked for says it
        }
      }
      const auto here = names_in(place);
      names.insert(names.end(), here.begin(), here.end());
    } else {
      names.push_back(name);
    }
  }
  Selecting selecting(*this);
  for (const auto& name : names) selecting.take(name, "");
  return selecting.result();
}

std::vector<std::pair<std::string, std::string>> TaskCatalog::list() const {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [name, entry] : entries_) {
    const auto keys = with_included(entry.keys, entry.file, entry.folder);
    const auto text = [&](const char* key) {
      return keys.contains(key) && keys[key].is_string() ? keys[key].get<std::string>() : std::string();
    };
    if (entry.is_group()) {
      lines.emplace_back(name, fmt::format("group of {}", keys.contains("task") ? keys["task"].size() : 0));
    } else {
      const auto of = text("dataset_name");
      lines.emplace_back(
          name, fmt::format("{}, {}{}", text("output_type"), text("dataset_path"), of.empty() ? "" : " " + of));
    }
  }
  return lines;
}

}  // namespace fsdp
