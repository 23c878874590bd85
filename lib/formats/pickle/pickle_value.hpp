#pragma once
// The content of a pickle as a tree of plain values. Classes and functions are names; nothing is imported or called.
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
/// Never null inside a document unless stated otherwise. The document owns the value.
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
  std::vector<std::pair<PickleRef, PickleRef>> items;  ///< as written: a key may repeat, and its last item counts
};
/// The name of a class, function or constant, such as `torch` `float32`.
struct PickleGlobal {
  std::string_view module, name;
  bool is(std::string_view other_module, std::string_view other_name) const {
    return module == other_module && name == other_name;
  }
};
/// A call or the construction of an object, which is recorded and not executed.
struct PickleObject {
  PickleRef callable = nullptr;  ///< always a PickleGlobal
  bool is_new = false;           ///< callable.__new__(*args) (NEWOBJ) rather than callable(*args) (REDUCE)
  PickleRef args = nullptr;      ///< always a PickleTuple
  PickleRef kwargs = nullptr;    ///< a PickleDict, or null
  PickleRef state = nullptr;     ///< argument of BUILD, or null
  PickleList items;              ///< appended after construction
  PickleDict entries;            ///< set after construction, such as the content of an OrderedDict
};
/// A reference to an object outside the pickle; PyTorch uses it for storages.
struct PicklePersistent {
  PickleRef id;
};

struct PickleValue {
  using Data =
      std::variant<PickleNone, bool, std::int64_t, double, PickleBigInt, PickleString, PickleBytes, PickleList,
                   PickleTuple, PickleSet, PickleDict, PickleGlobal, std::unique_ptr<PickleObject>, PicklePersistent>;
  std::uint64_t offset_bytes = 0;  ///< offset in the file of the opcode that made the value, for messages
  std::uint32_t index = 0;         ///< position in PickleDocument::values
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
  /// The object that calls or constructs module.name, or null.
  const PickleObject* object_of(std::string_view module, std::string_view name) const;
  bool is_global(std::string_view module, std::string_view name) const;
};

/// Describes the value for messages: "a dict", "an object of torch.Size".
std::string describe(const PickleValue& value);

/// A pickle that was read: its values, and the bytes that their strings point into. Moving a document keeps all
/// PickleRefs valid.
/// The graph has no cycles. A walk that follows every reference visits at most PickleLimits::max_values values and goes
/// at most PickleLimits::max_depth deep, so plain recursion is safe.
struct PickleDocument {
  std::shared_ptr<const std::string> text;
  std::deque<PickleValue> values;
  std::deque<std::string> names;  ///< full names of classes inside others, which `text` has in parts only
  PickleRef root = nullptr;
  std::uint64_t length_bytes = 0;  ///< length of the pickle through STOP; more bytes may follow in `text`
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

/// The items of a dict, an OrderedDict, a defaultdict or a Counter; null for any other value.
const PickleDict* pickled_mapping(const PickleValue& value);

/// Converts a plain value to JSON: tuples and sets become arrays, integer keys become strings, an OrderedDict becomes
/// an object.
/// \throws FormatError naming a value that JSON cannot hold: bytes, tensors, other objects
nlohmann::json pickle_to_json(const PickleValue& value, const std::string& file);

}  // namespace fsdp
