#pragma once
#include <filesystem>
#include <vector>

namespace fsdp {

/// The data files that `inputs` name, in this order. A directory stands for the data files in it and below it, sorted
/// by path, hidden ones left out: its .parquet, its .jsonl and .ndjson or its .csv and .tsv files; where it has none of
/// these its .json, else its .txt files (beside the others those usually only describe them).
/// \throws MissingInput when one does not exist; FormatError when a directory has no data files; UsageError when it has
///         several of the first three kinds, which often are the same data twice
std::vector<std::filesystem::path> data_files(const std::vector<std::filesystem::path>& inputs);

}  // namespace fsdp
