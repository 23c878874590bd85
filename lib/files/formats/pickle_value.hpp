#pragma once
// What a pickle says, as a tree of plain values. Classes and functions are names here; nothing is imported or called.
// Visits what a pickled value holds.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp {

struct PickleValue;
/// Never null inside a document unless stated; owned by the document.
using PickleRef = const PickleValue*;

struct PickleNone {};
struct PickleBigInt {
  std::string digits;  ///< decimal, an integer outside int64
};
struct PickleString {
  std::string_view text;  ///< valid UTF-8
};
struct PickleBytes {
  std::string_view data;  ///< bytes or bytearray
};
struct PickleList {
  std::vector<PickleRef> items;
};
struct PickleTuple {
  std::vector<PickleRef> items;
};
struct PickleSet {
  std::vector<PickleRef> items;  ///< set or frozenset, as written
};
struct PickleDict {
  std::vector<std::pair<PickleRef, PickleRef>> items;  ///< as written: a key may repeat, the last one counts
};
/// A class, function or constant by name, such as `torch` `float32`.
struct PickleGlobal {
  std::string_view module, name;
  bool is(std::string_view other_module, std::string_view other_name) const {
    return module == other_module && name == other_name;
  }
};
/// What a call or a class construction would have produced.
struct PickleObject {
  PickleRef callable = nullptr;  ///< always a PickleGlobal
  bool is_new = false;           ///< callable.__new__(*args) (NEWOBJ) rather than callable(*args) (REDUCE)
  PickleRef args = nullptr;      ///< always a PickleTuple
  PickleRef kwargs = nullptr;    ///< a PickleDict, or null
  PickleRef state = nullptr;     ///< argument of BUILD, or null
  PickleList items;              ///< appended after construction
  PickleDict entries;            ///< set after construction, such as an OrderedDict's content
};
/// A reference to something outside the pickle; torch uses it for storages.
struct PicklePersistent {
  PickleRef id;
};

struct PickleValue {
  using Data =
      std::variant<PickleNone, bool, std::int64_t, double, PickleBigInt, PickleString, PickleBytes, PickleList,
                   PickleTuple, PickleSet, PickleDict, PickleGlobal, std::unique_ptr<PickleObject>, PicklePersistent>;
  std::uint64_t offset_bytes = 0;  ///< of the opcode that made it, in the file: for messages
  std::uint32_t index = 0;         ///< its place in PickleDocument::values
  Data data;

  bool is_none() const { return std::holds_alternative<PickleNone>(data); }
  const bool* boolean() const { return std::get_if<bool>(&data); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data); }
  const double* real() const { return std::get_if<double>(&data); }
  const PickleBigInt* big_integer() const { return std::get_if<PickleBigInt>(&data); }
  const PickleString* string() const { return std::get_if<PickleString>(&data); }
  const PickleBytes* bytes() const { return std::get_if<PickleBytes>(&data); }
  const PickleList* list() const { return std::get_if<PickleList>(&data); }
  const PickleTuple* tuple() const { return std::get_if<PickleTuple>(&data); }
  const PickleSet* set() const { return std::get_if<PickleSet>(&data); }
  const PickleDict* dict() const { return std::get_if<PickleDict>(&data); }
  const PickleGlobal* global() const { return std::get_if<PickleGlobal>(&data); }
  const PicklePersistent* persistent() const { return std::get_if<PicklePersistent>(&data); }
  const PickleObject* object() const {
    const auto* held = std::get_if<std::unique_ptr<PickleObject>>(&data);
    return held != nullptr ? held->get() : nullptr;
  }
  /// The object made by calling or constructing module.name, or null.
  const PickleObject* object_of(std::string_view module, std::string_view name) const;
  bool is_global(std::string_view module, std::string_view name) const;
};

/// "a dict", "an object of torch.Size": for messages.
std::string describe(const PickleValue& value);

/// A read pickle: the values and the bytes their strings point into. Moving it keeps all PickleRefs valid.
/// The graph has no cycles, and following every reference visits at most PickleLimits::max_values values at most
/// PickleLimits::max_depth deep, so plain recursion over it is safe.
struct PickleDocument {
  std::shared_ptr<const std::string> text;
  std::deque<PickleValue> values;
  std::deque<std::string> names;  ///< of classes inside others, which the text has in parts
  PickleRef root = nullptr;
  std::uint64_t length_bytes = 0;  ///< of the pickle, through STOP; more may follow in `text`
};

/// Calls visit(PickleRef) for everything directly inside `value`: items, keys, arguments, state.
template <typename Visit>
void for_each_child(const PickleValue& value, Visit&& visit) {
  const auto visit_all = [&](const auto& items) {
    for (PickleRef item : items) visit(item);
  };
  const auto visit_pairs = [&](const PickleDict& dict) {
    for (const auto& [key, item] : dict.items) {
      visit(key);
      visit(item);
    }
  };
  if (value.list() != nullptr) visit_all(value.list()->items);
  if (value.tuple() != nullptr) visit_all(value.tuple()->items);
  if (value.set() != nullptr) visit_all(value.set()->items);
  if (value.dict() != nullptr) visit_pairs(*value.dict());
  if (value.persistent() != nullptr) visit(value.persistent()->id);
  if (const auto* object = value.object()) {
    for (PickleRef part : {object->callable, object->args, object->kwargs, object->state}) {
      if (part != nullptr) visit(part);
    }
    visit_all(object->items.items);
    visit_pairs(object->entries);
  }
}

/// The pairs of a dict, an OrderedDict, a defaultdict or a Counter; null for anything else.
const PickleDict* pickled_mapping(const PickleValue& value);

/// A plain value as JSON: tuples and sets become arrays, integer keys become strings, OrderedDict a plain object.
/// \throws FormatError naming what JSON cannot say: bytes, tensors, other objects
nlohmann::json pickle_to_json(const PickleValue& value, const std::string& file);

/// Strict UTF-8: shortest forms, no surrogates, nothing past U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace fsdp
