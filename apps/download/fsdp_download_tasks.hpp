#pragma once
// Fetches the data sets of benchmarks: fsdp-download --tasks.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/download.hpp"

namespace fsdp {

struct TasksDownload {
  std::vector<std::string> names;          ///< of tasks, groups and tags; task files, folders
  std::vector<std::string> include_paths;  ///< folders of task files
  bool dry_run = false;
  bool verify = false;
};

/// Says what each data set takes, then fetches the files that the tasks read, of the hub's Parquet files.
/// \param how  all but repository, revision and selection
/// \throws as download_snapshot(); TaskCatalog::select()
ExitCode download_tasks(const TasksDownload& wanted, const DownloadOptions& how, const HubSettings& settings,
                        const Logger& log, const std::function<bool()>& stop, nlohmann::json& report);

}  // namespace fsdp
