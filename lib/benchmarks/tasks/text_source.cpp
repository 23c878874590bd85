#include "lib/benchmarks/tasks/text_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "lib/base/types/error.hpp"

namespace fsdp {

using nlohmann::ordered_json;

TextSource::TextSource(const ordered_json& given, const std::set<std::string>& columns, std::string file,
                       std::string key)
    : given_(given),
      is_column_(given.is_string() && columns.contains(given.get<std::string>())),
      file_(std::move(file)),
      key_(std::move(key)) {
  if (!given.is_string() || is_column_) return;
  try {
    template_ = std::make_shared<JinjaTemplate>(given.get<std::string>(), JinjaEnvironment::strict);
  } catch (const FormatError& error) {
    throw FormatError(fmt::format("{}: key '{}': {}", file_, key_, error.what()));
  }
}

void TextSource::require_column_or_template(const std::set<std::string>& columns) const {
  if (template_ == nullptr) return;
  const auto text = given_.get<std::string>();
  const auto is_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_of_name)) return;
  throw FormatError(fmt::format("{}: key '{}': rows have no column '{}', but {} (the text itself: {{{{ '{}' }}}})",
                                file_, key_, text, fmt::join(columns, ", "), text));
}

void TextSource::fail(const std::string& row_name, const std::string& what) const {
  throw FormatError(fmt::format("{}: key '{}': {}: {}", file_, key_, row_name, what));
}

ordered_json TextSource::value(const ordered_json& row, const std::string& row_name) const {
  if (is_column_) {
    const auto column = row.find(given_.get<std::string>());
    if (column == row.end()) fail(row_name, fmt::format("has no column '{}'", given_.get<std::string>()));
    return *column;
  }
  if (template_ == nullptr) return given_;
  try {
    return template_->render(row, std::tm{}).text;
  } catch (const FormatError& error) {
    fail(row_name, error.what());
  }
}

std::string TextSource::text(const ordered_json& row, const std::string& row_name) const {
  const auto made = value(row, row_name);
  if (!made.is_string()) fail(row_name, fmt::format("is {}, and a text is expected", made.dump()));
  return made.get<std::string>();
}

}  // namespace fsdp
