#pragma once
// The value of --train-data: one path, or the sources of a mixture.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/documents/text_layout.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/token_files/id_array.hpp"

namespace fsdp {

/// A source of training data. What is not set here is as the job's options say.
struct DataSource {
  std::string name;  ///< unique among several sources; "" for a single one
  std::string path;  ///< file, folder, or ORG/NAME of the cache
  std::optional<double> weight, epochs;
  std::string field;
  std::optional<DataForm> form;
  std::optional<std::string> chat_template;
  std::optional<TrainOn> train_on;
  std::optional<TextLayout> layout;
  std::optional<NumberType> token_type;
  std::optional<std::int64_t> max_rows;
  std::string validation;  ///< path of data to validate on; "": none
};

/// Parses one of
///     PATH
///     PATH[:WEIGHT],PATH[:WEIGHT],...   with commas or ends of lines between; a path may be NAME=PATH
///     FILE.json                         with {"sources": [{"path": ..., "weight" or "epochs": ..., "name": ...}, ...]}
/// A text that is the path of an existing file is that path, and of several ways to read a text that counts whose paths
/// exist. Paths in a file are relative to its folder. Sources without a name get that of their file, with the folder
/// where several files have one name.
/// \throws RequestError for an empty path, a name that is there twice, or weights that some sources have and others
///         have not; FormatError naming file and key
std::vector<DataSource> parse_data_sources(const std::string& given, std::string_view option = "train-data");

/// The name of a source that the user gave none: its file's, without the ending.
std::string name_of_source(const std::string& path);

/// Writes sources that parse_data_sources() read from a text in that form, with other paths.
std::string data_sources_text(const std::vector<DataSource>& sources);

/// True for a JSON file of at most 1 MiB that is an object whose first key is sources.
bool is_mixture_file(const std::filesystem::path& file);

}  // namespace fsdp
