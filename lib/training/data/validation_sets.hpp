#pragma once
// The value of --val-data: one path, or several with names.
#include <string>
#include <vector>

namespace fsdp {

struct ValidationSet {
  std::string name;  ///< "" where there is only one and it was given none
  std::string path;
  bool operator==(const ValidationSet&) const = default;
};

/// PATH, or NAME=PATH,NAME=PATH,... What is the path of something is that path, whatever is in it; a comma that no
/// NAME= follows belongs to a path. Empty: none.
/// \throws UsageError for a name that is there twice or a path that is empty
std::vector<ValidationSet> parse_validation_sets(const std::string& text);

/// Writes sets in the form that parse_validation_sets() reads.
std::string validation_sets_text(const std::vector<ValidationSet>& sets);

/// The rule for names, for a message about a missing path that contains '='; empty for a path without '='.
std::string hint_about_names(const ValidationSet& set);

}  // namespace fsdp
