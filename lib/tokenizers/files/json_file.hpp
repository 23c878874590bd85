#pragma once
// Access to JSON files whose content is not trusted: every access checks the type and reports what was expected and
// where.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/advice.hpp"

namespace fsdp {

/// A value inside a JSON document, which must outlive this object.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_string() const { return value_->is_string(); }

  /// \throws FormatError when the value is of another type
  const std::string& string() const;
  bool boolean() const;
  std::int64_t integer() const;
  const nlohmann::json& object() const;
  std::vector<JsonValue> elements() const;

  /// Returns the member `key`, or null when this is no object or has no such member.
  JsonValue get(std::string_view key) const;
  /// \throws FormatError when there is no such member
  JsonValue at(std::string_view key) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::optional<std::string> optional_string(std::string_view key) const;

  /// "FILE: PATH: PROBLEM"
  [[noreturn]] void fail(const std::string& problem, const Advice& advice = {}) const;
  const std::string& where() const { return where_; }
  const nlohmann::json& json() const { return *value_; }

 private:
  const nlohmann::json* value_;
  std::string where_;
};

/// Reads a file that must hold a JSON object, at most 64 values deep.
/// \throws IoError; FormatError naming the file and, for a syntax error, the byte
nlohmann::json read_json_object(const std::filesystem::path& file);

}  // namespace fsdp
