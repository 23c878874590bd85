#pragma once
// Config files in axolotl's YAML.
#include <istream>
#include <string>
#include <vector>

#include "apps/common/config_files/config_file.hpp"
#include "apps/common/option_table.hpp"
#include "lib/base/messages/ignored.hpp"
#include "lib/base/messages/log.hpp"

namespace fsdp {

/// Facts about a config file in YAML, which a job logs.
struct AxolotlNotes {
  std::vector<std::string> ignored;   ///< keys whose values change nothing here: "datasets[0].split"
  std::vector<std::string> left_out;  ///< what stands for keys that the file leaves out: "lr_scheduler: cosine"
};

/// Config files of fsdp-finetune and fsdp-memprobe. A file whose first line is YAML is read as axolotl reads it: each
/// key becomes the option of the same meaning (the tables of other_names.cpp), and keys that are left out count as
/// axolotl's defaults where those are others than here. All other files are read as ConfigFile does.
class AxolotlFile : public ConfigFile {
 public:
  /// \param table  with all options, by which keys are looked up; must outlive this, as must `notes`
  AxolotlFile(const OptionTable& table, AxolotlNotes& notes) : table_(table), notes_(notes) {}

  /// \throws CLI::FileError naming the line of each key that has no option of the same meaning
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  std::size_t line_of_option(std::istream& input, const std::vector<std::string>& names) const override;

 private:
  const OptionTable& table_;
  AxolotlNotes& notes_;
};

/// Logs the notes of a job's config file, in a line each where there are any. \return the keys that were ignored
Ignored log_config(const OptionTable& table, const AxolotlNotes& notes, const Logger& log);

}  // namespace fsdp
