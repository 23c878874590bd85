#pragma once
// Labels of texts, for classifiers.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fsdp {

inline constexpr const char* kLabelKey = "label";

/// The number of the label of a record: `label` is that number, or the name at its place in `labels`; of two labels
/// false and true are 0 and 1.
/// \throws FormatError for a label that is missing or none of `labels`
std::int32_t number_of_label(const nlohmann::ordered_json& record, const std::vector<std::string>& labels);

/// "a, b, c, ...": the first labels, for messages.
std::string list_of_labels(const std::vector<std::string>& labels);

/// The names of the labels in files of samples of the form `label`. Names are sorted; numbers 0, 1, ... get the names
/// that transformers gives them, LABEL_0, LABEL_1, ... \param field  key or column of the texts; empty: `text`
/// \param stop_wanted  polled
/// \throws FormatError naming file and place; RuntimeFailure after stop_wanted returned true
std::vector<std::string> find_labels(const std::vector<std::filesystem::path>& inputs, const std::string& field,
                                     const std::function<bool()>& stop_wanted);

}  // namespace fsdp
