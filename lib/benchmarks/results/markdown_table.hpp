#pragma once
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace fsdp {

/// Lines of a table in Markdown that is readable as it is: columns are as wide as their texts.
/// \param rows   the header first; all of one length \param right  columns whose texts end alike, of numbers
std::vector<std::string> markdown_table(const std::vector<std::vector<std::string>>& rows,
                                        const std::set<std::size_t>& right);

}  // namespace fsdp
