#include "lib/training/watch/exclude_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {

void exclude_nodes(const std::filesystem::path& file, const std::vector<std::string>& nodes, const Logger& log) try {
  if (file.empty() || nodes.empty()) return;
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error))
    throw IoError(file.string() + ": is no regular file");
  std::vector<std::string> known, added;
  bool ends_a_line = true;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    ends_a_line = !in.eof();
    line = line.substr(0, line.find('#'));  // a comment
    std::erase_if(line, [](unsigned char c) { return std::isspace(c) != 0; });
    known.push_back(line);
  }
  std::string text = ends_a_line ? "" : "\n";
  for (const auto& node : nodes) {
    if (std::ranges::find(known, node) != known.end()) continue;
    known.push_back(node);
    added.push_back(node);
    text += node + "\n";
  }
  if (added.empty()) return;
  auto out = File::open_append(file);
  out.write(text);
  out.close();
  log.info(fmt::format("excluded  {} is to be left out by the next job: {}", fmt::join(added, ", "), file.string()));
} catch (const IoError& error) {
  log.warning(fmt::format("{}; a node that was to be left out by the next job is not noted", error.what()));
}

}  // namespace fsdp
