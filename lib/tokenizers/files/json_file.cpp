#include "lib/tokenizers/files/json_file.hpp"

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxBytes = 128u << 20;  // Llama 3's tokenizer.json has 17 MB

const nlohmann::json& null_json() {
  static const nlohmann::json null;
  return null;
}

}  // namespace

void JsonValue::fail(const std::string& problem, const Advice& advice) const {
  throw FormatError(where_ + ": " + problem, advice);
}

const std::string& JsonValue::string() const {
  if (!value_->is_string()) fail("is no text");
  return value_->get_ref<const std::string&>();
}

bool JsonValue::boolean() const {
  if (!value_->is_boolean()) fail("is neither true nor false");
  return value_->get<bool>();
}

std::int64_t JsonValue::integer() const {
  if (!value_->is_number_integer() || (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX)) {
    fail("is no integer");
  }
  return value_->get<std::int64_t>();
}

const nlohmann::json& JsonValue::object() const {
  if (!value_->is_object()) fail("is no object {...}");
  return *value_;
}

std::vector<JsonValue> JsonValue::elements() const {
  if (!value_->is_array()) fail("is no list [...]");
  std::vector<JsonValue> all;
  all.reserve(value_->size());
  for (const auto& element : *value_) all.emplace_back(element, where_ + "[" + std::to_string(all.size()) + "]");
  return all;
}

JsonValue JsonValue::get(std::string_view key) const {
  const std::string where = where_ + ": " + std::string(key);
  if (!value_->is_object()) return {null_json(), where};
  const auto found = value_->find(std::string(key));
  return {found == value_->end() ? null_json() : *found, where};
}

JsonValue JsonValue::at(std::string_view key) const {
  JsonValue member = get(key);
  if (member.is_null()) member.fail("is missing");
  return member;
}

bool JsonValue::boolean(std::string_view key, bool otherwise) const {
  const JsonValue member = get(key);
  return member.is_null() ? otherwise : member.boolean();
}

std::optional<std::string> JsonValue::optional_string(std::string_view key) const {
  const JsonValue member = get(key);
  if (member.is_null()) return {};
  return member.string();
}

nlohmann::json read_json_object(const std::filesystem::path& file) {
  const std::string text = read_text_file(file, kMaxBytes);
  try {
    auto json = parse_json(text, file.string());
    if (!json.is_object()) throw FormatError(file.string() + ": is no JSON object {...}");
    return json;
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(file.string(), error.byte, "is no JSON: " + std::string(error.what()));
  } catch (const nlohmann::json::exception& error) {  // a number such as 1e999, which does not fit a double
    throw FormatError(file.string() + ": is no JSON: " + std::string(error.what()));
  }
}

}  // namespace fsdp
