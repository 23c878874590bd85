#pragma once
// Values of a YAML file.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct YamlEntry;

/// A value as PyYAML's safe_load reads it, which is YAML 1.1: `yes` is true, 010 is 8, 1:30 is 90, and 1e-4, without a
/// dot, is a text.
struct YamlValue {
  enum class Kind { null, boolean, number, text, list, map };

  Kind kind = Kind::null;
  std::string text;                ///< of a boolean true or false, of a number decimal digits; "" for null, list, map
  std::size_t line = 0;            ///< from 1
  std::vector<YamlValue> items;    ///< of a list
  std::vector<YamlEntry> entries;  ///< of a map, in the file's order; no key twice
  bool named = false;              ///< by an anchor (&x), for aliases
  std::string tag;                 ///< of a text, where YamlTags::kept: "!function"; "" for those of YAML itself

  bool is_scalar() const { return kind != Kind::list && kind != Kind::map; }
};

/// A key, which is a scalar, and its value.
struct YamlEntry {
  std::string key;
  std::size_t line = 0;  ///< of the key, from 1
  YamlValue value;
};

/// Tags that YAML itself does not have are refused, or kept with the value.
enum class YamlTags : bool { refused, kept };

/// Reads the one document of a text in UTF-8; null where it has none. Aliases are replaced by what they stand for, and
/// merge keys (<<) by their entries.
/// \throws FormatError "line N: ..." for what is no YAML, keys that are there twice or are no scalars, tags of other
/// types unless they are kept (of texts), several documents, and more than 1 MiB, 64 levels, or 16 MiB once aliases are
/// replaced
YamlValue read_yaml(std::string_view text, YamlTags tags = YamlTags::refused);

}  // namespace fsdp
