#pragma once
#include <string>
#include <vector>

namespace fsdp {

/// A table of results of fsdp-eval --tasks --json, or of lm-eval: a row per metric, a column per file, named by its
/// checkpoint. \throws IoError; FormatError for a file that holds no such results
std::vector<std::string> results_table(const std::vector<std::string>& files);

}  // namespace fsdp
