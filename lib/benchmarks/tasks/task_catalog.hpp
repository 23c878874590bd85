#pragma once
// Finds tasks and groups by name, in the shipped files and in those of the user.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/benchmarks/tasks/task.hpp"

namespace fsdp {

/// Tasks in the order in which they are asked for, each once, and the groups that were named with all groups in them.
struct TaskSelection {
  std::vector<Task> tasks;
  std::vector<TaskGroup> groups;  ///< the groups within a group come before it
};

class TaskCatalog {
 public:
  /// The shipped ones (data/tasks).
  TaskCatalog();

  /// Adds the task files in a folder and below it: .yaml, .yml and .json with a `task` or a `group`. They take the
  /// place of shipped ones. \throws FormatError for what is no task file, and for a name that two of the user's files
  /// have
  void add_folder(const std::filesystem::path& folder);

  /// \param wanted  names of tasks, groups and tags; task files, whose folders are added; folders: all in them
  /// \throws RequestError for an unknown name; FormatError as task_of() and group_of()
  TaskSelection select(const std::vector<std::string>& wanted);

  /// The names of tasks and groups, with a line about each: what --tasks list prints.
  std::vector<std::pair<std::string, std::string>> list() const;

 private:
  /// The keys of a file or of an element of a group's list, without those of the files that they include.
  struct Entry {
    nlohmann::ordered_json keys;
    std::string file;
    std::filesystem::path folder;
    bool is_shipped = false;
    bool is_group() const { return keys.contains("group"); }
  };
  class Selecting;

  void add(Entry entry);
  void add_file(const std::filesystem::path& file, bool must_be_task);
  std::vector<std::string> names_in(const std::filesystem::path& place) const;
  std::vector<std::string> tagged(const std::string& tag) const;

  std::map<std::string, Entry> entries_;
};

}  // namespace fsdp
