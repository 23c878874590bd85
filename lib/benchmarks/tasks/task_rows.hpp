#pragma once
// The rows of a task's data set.
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/benchmarks/tasks/task.hpp"

namespace fsdp {

/// Returns the folder of a data set: of a path, itself; of ORG/NAME, its snapshot in the hub's cache.
/// \throws MissingInput naming how it is fetched
using DatasetFinder = std::function<std::filesystem::path(const std::string& path)>;

/// Rows are objects of columns, with the columns that the task's templates make of them.
/// \throws MissingInput when the split has no files; FormatError naming file and row
std::vector<nlohmann::ordered_json> read_task_rows(const Task& task, const std::string& split,
                                                   const DatasetFinder& find);

/// The branch of a repository of the hub with the Parquet files that the hub makes of every data set.
inline constexpr const char* kParquetRevision = "refs/convert/parquet";

/// The splits that a task reads with `shots` examples: of questions, and of these.
std::vector<std::string> splits_of(const Task& task, bool shots);
/// The pattern of a split's files in kParquetRevision.
std::string parquet_pattern(const Task& task, const std::string& split);

/// The files of a split in the folder of a data set: those that data_files names, else CONFIG/SPLIT-*.parquet,
/// CONFIG/SPLIT/*.parquet, data/SPLIT-*.parquet or SPLIT.jsonl and the like. Sorted. \throws MissingInput saying what
/// files were looked for; FormatError where several configurations have the split and the task names none
std::vector<std::filesystem::path> task_files(const Task& task, const std::string& split, const DatasetFinder& find);

}  // namespace fsdp
