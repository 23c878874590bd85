#pragma once
// Finding out what the samples of a data file are.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/text/chat/conversation_options.hpp"

namespace fsdp {

/// Which of a file's keys or columns are read.
struct DataSelection {
  DataForm form = DataForm::text;
  std::string field;  ///< of texts or messages; empty: the usual one
};

/// The form of a file's samples, never automatic. One that is asked for is taken. Otherwise a field that is named holds
/// texts, and without one JSON Lines (by its first object) and Parquet (by its columns) are looked into: `messages`,
/// else `prompt` and `completion`, else texts. CSV and plain files hold texts.
/// \throws UsageError when CSV or a plain file is to hold anything else, and when a file has the keys of several forms;
///         IoError; FormatError
DataForm find_data_form(const std::filesystem::path& file, const DataSelection& selection);

/// The key or column of messages.
inline std::string messages_field(const DataSelection& selection) {
  return selection.field.empty() ? "messages" : selection.field;
}

namespace detail {
/// The keys of a JSON Lines file's first object; none where that line is none.
std::vector<std::string> first_json_keys(const std::filesystem::path& file);
}  // namespace detail
}  // namespace fsdp
