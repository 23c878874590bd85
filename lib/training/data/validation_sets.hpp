#pragma once
// The value of --val-data: one path, or several with names.
#include <cstddef>
#include <string>
#include <vector>

namespace fsdp {

struct ValidationSet {
  std::string name;  ///< "" for a single set without a name
  std::string path;
  bool operator==(const ValidationSet&) const = default;
};

/// Length of NAME= at `begin`; 0 when there is none.
std::size_t length_of_name(const std::string& text, std::size_t begin = 0);

/// Parses PATH, or NAME=PATH,NAME=PATH,... A text that is the path of an existing file is that path, whatever it
/// contains; a comma without a following NAME= belongs to a path. Empty text: no sets.
/// \throws RequestError for a repeated name or an empty path
std::vector<ValidationSet> parse_validation_sets(const std::string& text, std::string_view option = "val-data");

/// Writes sets in the form that parse_validation_sets() reads.
std::string validation_sets_text(const std::vector<ValidationSet>& sets);

/// The rule for names, for a message about a missing path that contains '='; empty for a path without '='.
std::string hint_about_names(const ValidationSet& set);

}  // namespace fsdp
