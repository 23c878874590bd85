#pragma once
// Tells which parts of a program's input have no influence on its result, so that no user relies on them.
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace fsdp {

class Logger;

/// Names of what was not used, by the place where they are: keys of a JSON file, tensors, files of a folder, columns of
/// data.
class Ignored {
 public:
  /// \param where  "MODEL/config.json", "tensors of CHECKPOINT", "files in MODEL"
  /// \param names  in any order; names that differ in numbers between dots alone count as one, with '*' for a number
  void add(const std::string& where, const std::vector<std::string>& names);
  void add(const Ignored& other);
  /// The files and folders in `directory` but for hidden ones and `used`. Nothing where it is no directory.
  void add_files(const std::filesystem::path& directory, const std::set<std::string>& used);

  bool empty() const { return names_.empty(); }
  /// One line per place for people, where many names are given by their first parts: "CHECKPOINT: optim.* (33 names)".
  std::vector<std::string> lines() const;
  /// All names: {"MODEL/config.json": ["use_cache"]}
  nlohmann::json to_json() const;

 private:
  std::map<std::string, std::set<std::string>> names_;
};

/// One line of the log per place: "ignored   MODEL: README.md".
void log_ignored(const Ignored& ignored, const Logger& log);

}  // namespace fsdp
