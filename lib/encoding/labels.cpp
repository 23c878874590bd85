#include "lib/encoding/labels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/documents/data_files.hpp"
#include "lib/documents/documents.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

const Json& label_of(const Json& record) {
  const auto label = record.find(kLabelKey);
  if (label == record.end()) throw FormatError("has no 'label'");
  if (label->is_number_integer() || label->is_string() || label->is_boolean()) return *label;
  throw FormatError(fmt::format("'label' is {}, expected the whole number or the name of one label",
                                label->is_structured() ? label->type_name() : label->dump()));
}

/// \return nothing for a name
std::optional<std::int64_t> number_in(const Json& label) {
  if (label.is_boolean()) return label.get<bool>() ? 1 : 0;
  if (!label.is_number_integer()) return std::nullopt;
  if (label.is_number_unsigned() && label.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostLabels))
    return kMostLabels;
  return label.get<std::int64_t>();
}

}  // namespace

std::int32_t number_of_label(const nlohmann::ordered_json& record, const std::vector<std::string>& labels) {
  const auto& label = label_of(record);
  if (const auto number = number_in(label)) {
    if (*number >= 0 && *number < std::ssize(labels)) return static_cast<std::int32_t>(*number);
    throw FormatError(
        fmt::format("'label' is {}, and the labels are 0 to {}", label.dump(), static_cast<int>(labels.size()) - 1));
  }
  const auto& name = label.get_ref<const std::string&>();
  const auto found = std::ranges::find(labels, name);
  if (found != labels.end()) return static_cast<std::int32_t>(found - labels.begin());
  throw FormatError(fmt::format("'label' is '{}', and the labels are {}", name, list_of_labels(labels)));
}

std::string list_of_labels(const std::vector<std::string>& labels) {
  constexpr std::ptrdiff_t kShown = 8;
  const auto shown = std::min(kShown, std::ssize(labels));
  return fmt::format("{}{}", fmt::join(labels.begin(), labels.begin() + shown, ", "),
                     shown < std::ssize(labels) ? ", ..." : "");
}

std::vector<std::string> find_labels(const std::vector<std::filesystem::path>& inputs, const std::string& field,
                                     const std::function<bool()>& stop_wanted) {
  std::vector<DataPiece> pieces;
  for (const auto& file : data_files(inputs)) pieces.push_back({file});
  DocumentStream stream(std::move(pieces), {DataForm::label, field}, 0);
  std::set<std::string> names;
  std::int64_t largest = -1;
  std::string first;  // place of the first sample
  for (std::string text; stream.next(text);) {
    if (stop_wanted && stop_wanted()) throw RuntimeFailure("stopped while labels were being read");
    const auto refuse = [&](const std::string& problem) { throw FormatError(stream.where() + ": " + problem); };
    Json label;
    try {
      const auto record = PythonJson(text).parse();
      if (!record.is_object()) throw FormatError("holds no object {...}");
      label = label_of(record);
    } catch (const nlohmann::json::exception& error) {
      refuse(detail::no_json(text, error.what()));
    } catch (const FormatError& error) {
      refuse(error.what());
    }
    const auto number = number_in(label);
    if (number && (*number < 0 || *number >= kMostLabels))
      refuse(fmt::format("'label' is {}, expected 0 to {}", label.dump(), kMostLabels - 1));
    if (number) {
      largest = std::max(largest, *number);
    } else {
      names.insert(label.get<std::string>());
    }
    if (first.empty()) first = stream.where();
    if (largest >= 0 && !names.empty())
      refuse("'label' is a " + std::string(number ? "number" : "name") + ", and of the samples before not");
    if (std::ssize(names) > kMostLabels) refuse(fmt::format("there are more than {} labels", kMostLabels));
  }
  if (first.empty()) throw FormatError((inputs.empty() ? "" : inputs.front().string()) + ": holds no labels");
  if (largest < 0) {
    std::vector<std::string> sorted(names.begin(), names.end());
    const auto is_number = [](const std::string& name) {
      return name.find_first_not_of("0123456789") == std::string::npos && !name.empty();
    };
    // "2" comes before "10".
    if (std::ranges::all_of(sorted, is_number))
      std::ranges::stable_sort(sorted, {}, [](const std::string& name) { return name.size(); });
    return sorted;
  }
  return unnamed_labels(largest + 1);
}

}  // namespace fsdp
