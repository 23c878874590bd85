#pragma once
// A text that a task makes of a row: a column, a template, or always the same.
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lib/templates/jinja/jinja.hpp"

namespace fsdp {

class TextSource {
 public:
  /// \param given    a key's value: a column's name, a template, or a value. Null: none
  /// \param columns  that rows have \param file  and `key` name it in messages
  /// \throws FormatError for what is no template
  TextSource(const nlohmann::ordered_json& given, const std::set<std::string>& columns, std::string file,
             std::string key);

  /// Refuses the name of a column that rows do not have, which would be a text without anything of the row.
  /// \throws FormatError naming the columns
  void require_column_or_template(const std::set<std::string>& columns) const;
  explicit operator bool() const { return !given_.is_null(); }
  /// The value of the column, the text of the template, or the value itself. \param row_name  for messages
  /// \throws FormatError naming file, key and row: a column that is missing, an error in a template
  nlohmann::ordered_json value(const nlohmann::ordered_json& row, const std::string& row_name) const;
  /// Its text. \throws as value(), and where the value is no text
  std::string text(const nlohmann::ordered_json& row, const std::string& row_name) const;
  /// True when value() is the text of a template.
  bool is_template() const { return template_ != nullptr; }
  [[noreturn]] void fail(const std::string& row_name, const std::string& what) const;

 private:
  nlohmann::ordered_json given_;
  bool is_column_;
  std::shared_ptr<const JinjaTemplate> template_;
  std::string file_, key_;
};

}  // namespace fsdp
