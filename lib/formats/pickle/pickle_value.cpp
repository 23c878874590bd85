#include "lib/formats/pickle/pickle_value.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {
namespace {

class JsonMaker {
 public:
  explicit JsonMaker(const std::string& file) : file_(file) {}

  nlohmann::json make(const PickleValue& value) const {
    if (value.is_none()) return nullptr;
    if (const auto* boolean = value.boolean()) return *boolean;
    if (const auto* integer = value.integer()) return *integer;
    if (const auto* real = value.real()) return *real;
    if (const auto* string = value.string()) return std::string(string->text);
    if (value.big_integer() != nullptr) return big_integer(value);
    if (const auto* list = value.list()) return array(list->items);
    if (const auto* tuple = value.tuple()) return array(tuple->items);
    if (const auto* set = value.set()) return array(set->items);
    if (const auto* dict = value.dict()) return object(*dict);
    if (const auto* held = value.object()) return from_object(value, *held);
    refuse(value);
  }

 private:
  [[noreturn]] void refuse(const PickleValue& value) const {
    throw FormatError(file_, value.offset_bytes, "a plain value was expected, found " + describe(value));
  }

  nlohmann::json big_integer(const PickleValue& value) const {
    const auto& digits = value.big_integer()->digits;
    errno = 0;
    const auto number = std::strtoull(digits.c_str(), nullptr, 10);
    if (errno != 0 || digits.front() == '-') {
      throw FormatError(file_, value.offset_bytes, "the integer " + digits.substr(0, 40) + " does not fit 64 bits");
    }
    return std::uint64_t{number};
  }

  nlohmann::json array(const std::vector<PickleRef>& items) const {
    auto made = nlohmann::json::array();
    for (const auto item : items) made.push_back(make(*item));
    return made;
  }

  nlohmann::json object(const PickleDict& dict) const {
    auto made = nlohmann::json::object();
    for (const auto& [key, item] : dict.items) {
      if (const auto* integer = key->integer()) {
        made[std::to_string(*integer)] = make(*item);
      } else if (const auto* string = key->string()) {
        made[std::string(string->text)] = make(*item);
      } else {
        throw FormatError(file_, key->offset_bytes, "a dict key is " + describe(*key) + ", a str or int was expected");
      }
    }
    return made;
  }

  /// Converts OrderedDict, defaultdict, Counter, set and frozenset, which are objects of a class but plain data.
  nlohmann::json from_object(const PickleValue& value, const PickleObject& held) const {
    const auto& args = held.args->tuple()->items;
    const auto is_builtin = [&](std::string_view name) {
      return value.object_of("__builtin__", name) != nullptr || value.object_of("builtins", name) != nullptr;
    };
    if (value.object_of("collections", "OrderedDict") != nullptr && args.empty()) return object(held.entries);
    if (value.object_of("collections", "defaultdict") != nullptr) return object(held.entries);
    if (value.object_of("collections", "Counter") != nullptr && args.size() == 1 && args[0]->dict() != nullptr) {
      return object(*args[0]->dict());
    }
    if ((is_builtin("set") || is_builtin("frozenset")) && args.size() == 1 && args[0]->list() != nullptr) {
      return array(args[0]->list()->items);
    }
    refuse(value);
  }

  const std::string& file_;
};

}  // namespace

const PickleObject* PickleValue::object_of(std::string_view module, std::string_view name) const {
  const auto* held = object();
  return held != nullptr && held->callable->is_global(module, name) ? held : nullptr;
}

bool PickleValue::is_global(std::string_view module, std::string_view name) const {
  const auto* held = global();
  return held != nullptr && held->is(module, name);
}

std::string describe(const PickleValue& value) {
  const auto dotted = [](const PickleGlobal& global) {
    return std::string(global.module.substr(0, 100)) + "." + std::string(global.name.substr(0, 100));
  };
  if (const auto* object = value.object()) return "an object of " + dotted(*object->callable->global());
  if (const auto* global = value.global()) return "the name " + dotted(*global);
  static constexpr const char* names[] = {
      "None",   "a bool",  "an int", "a float", "a big int", "a str",     "a bytes",
      "a list", "a tuple", "a set",  "a dict",  "a name",    "an object", "a reference to a storage"};
  static_assert(std::size(names) == std::variant_size_v<PickleValue::Data>);
  return names[value.data.index()];
}

const PickleDict* pickled_mapping(const PickleValue& value) {
  if (value.dict() != nullptr) return value.dict();
  if (const auto* object = value.object_of("collections", "OrderedDict")) {
    return object->args->tuple()->items.empty() ? &object->entries : nullptr;
  }
  if (const auto* object = value.object_of("collections", "defaultdict")) return &object->entries;
  if (const auto* object = value.object_of("collections", "Counter")) {
    const auto& args = object->args->tuple()->items;
    return args.size() == 1 ? args[0]->dict() : nullptr;
  }
  return nullptr;
}

nlohmann::json pickle_to_json(const PickleValue& value, const std::string& file) { return JsonMaker(file).make(value); }

}  // namespace fsdp
