#include "lib/benchmarks/results/markdown_table.hpp"

#include <algorithm>

#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {

std::vector<std::string> markdown_table(const std::vector<std::vector<std::string>>& rows,
                                        const std::set<std::size_t>& right) {
  constexpr std::size_t kLeastWidth = 3;  // of the dashes under a header
  std::vector<std::size_t> widths(rows.front().size(), kLeastWidth);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], jinja::count_characters(row[i]));
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line = "|";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - jinja::count_characters(row[i]), ' ');
      line += right.contains(i) ? space + row[i] + "|" : row[i] + space + "|";
    }
    lines.push_back(std::move(line));
    if (lines.size() > 1) continue;
    line = "|";
    for (std::size_t i = 0; i < widths.size(); ++i)
      line += std::string(widths[i] - 1, '-') + (right.contains(i) ? ":|" : "-|");
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace fsdp
