#include "lib/text/sources/plugin/column_choice.hpp"

#include <parquet/types.h>

#include <stdexcept>

namespace fsdp::detail {

std::string column_names(const parquet::schema::GroupNode& root) {
  std::string names;
  for (int i = 0; i < root.field_count() && names.size() < 200; ++i) {
    names += (names.empty() ? "'" : ", '") + root.field(i)->name() + "'";
  }
  return names.empty() ? "none" : names;
}

int find_column(const parquet::schema::GroupNode& root, const std::string& name) {
  int found = -1;
  for (int i = 0; i < root.field_count(); ++i) {
    if (root.field(i)->name() != name) continue;
    if (found >= 0) throw std::runtime_error("has two columns '" + name + "', and which is meant cannot be said");
    found = i;
  }
  return found;
}

namespace {

int find_field(const parquet::schema::GroupNode& root, const std::string& field) {
  if (!field.empty()) return find_column(root, field);
  const int text = find_column(root, "text");
  return text >= 0 ? text : find_column(root, "Moves");
}

/// A record with one member has one leaf, as a string has. Of a list the groups are its own two.
bool is_within_record(const parquet::ColumnDescriptor& leaf, const parquet::schema::Node& root) {
  const auto is_list = [](const parquet::schema::Node& node) {
    return node.logical_type() != nullptr && node.logical_type()->is_list();
  };
  for (const auto* node = leaf.schema_node()->parent(); node != nullptr && node != &root; node = node->parent()) {
    const auto* above = node->parent();
    if (!is_list(*node) && !(node->is_repeated() && above != nullptr && is_list(*above))) return true;
  }
  return false;
}

bool holds_text(const parquet::ColumnDescriptor& leaf) {
  if (leaf.physical_type() != parquet::Type::BYTE_ARRAY) return false;
  const auto& type = leaf.logical_type();
  return type == nullptr || type->is_none() || type->is_string() || type->is_enum() || type->is_JSON();
}

std::string type_name(const parquet::ColumnDescriptor& leaf) {
  const auto& type = leaf.logical_type();
  const auto physical = parquet::TypeToString(leaf.physical_type());
  return type == nullptr || type->is_none() ? physical : physical + " " + type->ToString();
}

}  // namespace

ColumnChoice choose_column(const parquet::SchemaDescriptor& schema, const std::string& field) {
  const auto& root = *schema.group_node();
  const int index = find_field(root, field);
  if (index < 0) {
    throw std::runtime_error("has no column " + (field.empty() ? "'text' or 'Moves'" : "'" + field + "'") + ", only " +
                             column_names(root) +
                             "; --data-field names the one to read (of fsdp-download tokens: --field)");
  }
  ColumnChoice choice;
  choice.name = root.field(index)->name();
  int leaves = 0;
  for (int i = 0; i < schema.num_columns(); ++i) {
    if (schema.GetColumnRoot(i) != root.field(index).get()) continue;
    choice.leaf = i;
    ++leaves;
  }
  if (leaves != 1) {
    throw std::runtime_error("column '" + choice.name + "' is a record of " + std::to_string(leaves) +
                             " columns, expected strings or lists of strings");
  }
  const auto& leaf = *schema.Column(choice.leaf);
  if (is_within_record(leaf, root)) {
    throw std::runtime_error("column '" + choice.name + "' holds records (of '" + leaf.name() +
                             "'), expected strings or lists of strings");
  }
  if (leaf.max_repetition_level() > 1) {
    throw std::runtime_error("column '" + choice.name + "' holds lists of lists, expected strings or lists of strings");
  }
  if (!holds_text(leaf)) {
    throw std::runtime_error("column '" + choice.name + "' holds " + type_name(leaf) +
                             ", expected strings or lists of strings");
  }
  choice.value_level = leaf.max_definition_level();
  // Optional nodes below the list stand for null elements, those above it for null lists; the definition level of an
  // empty list is one less than that of the list.
  std::int16_t below = 0;
  for (const parquet::schema::Node* node = leaf.schema_node().get(); node != nullptr && node != &root;
       node = node->parent()) {
    if (node->is_repeated()) {
      choice.list = true;
      choice.list_level = static_cast<std::int16_t>(choice.value_level - below);
      break;
    }
    if (node->is_optional()) ++below;
  }
  return choice;
}

}  // namespace fsdp::detail
