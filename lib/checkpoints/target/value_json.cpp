#include "lib/checkpoints/target/value_json.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

std::string json_string(std::string_view text) { return json_text(nlohmann::json(std::string(text))); }
std::string tagged(const char* tag, const std::string& json) { return std::string("{\"") + tag + "\": " + json + "}"; }
std::string dotted(const PickleGlobal& global) {
  const std::string_view module = global.module == "__builtin__" ? std::string_view("builtins") : global.module;
  return json_string(std::string(module) + "." + std::string(global.name));
}

std::string hex(std::string_view data) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "\"";
  for (const char byte : data) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text + "\"";
}

/// The bytes that protocol 2 writes as text, a character for each byte; nothing when a character is no byte.
std::optional<std::string> latin1(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes.push_back(text[i]);
    } else if (lead <= 0xc3 && i + 1 < text.size()) {
      bytes.push_back(static_cast<char>((lead & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f)));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

class JsonText {
 public:
  explicit JsonText(const std::string& name) : name_(name) {}

  std::string make(const PickleValue& value) const {
    if (value.is_none()) return "null";
    if (const auto* boolean = value.boolean()) return *boolean ? "true" : "false";
    if (const auto* integer = value.integer()) return std::to_string(*integer);
    if (const auto* real = value.real()) return make(*real);
    if (const auto* big = value.big_integer()) return big->digits;
    if (const auto* string = value.string()) return json_string(string->text);
    if (const auto* bytes = value.bytes()) return tagged("__bytes__", hex(bytes->data));
    if (const auto* list = value.list()) return make(list->items);
    if (const auto* tuple = value.tuple()) return tagged("__tuple__", make(tuple->items));
    if (const auto* set = value.set()) return tagged("__set__", make(set->items));
    if (const auto* dict = value.dict()) return make(*dict);
    if (const auto* global = value.global()) return make(*global);
    if (const auto* object = value.object()) return make(*object);
    throw RequestError("value \"" + name_ + "\" holds " + describe(value) + ", which JSON cannot say",
                       {Remedy::exclude, name_});
  }

 private:
  static std::string make(double real) {
    if (std::isfinite(real)) return json_text(nlohmann::json(real));
    return tagged("__float__", std::isnan(real) ? "\"nan\"" : real < 0 ? "\"-inf\"" : "\"inf\"");
  }
  static std::string make(const PickleGlobal& global) {
    return tagged(global.module == "torch" ? "__dtype__" : "__global__", dotted(global));
  }
  std::string make(const std::vector<PickleRef>& items) const {
    std::string text = "[";
    for (const auto* item : items) text += (text.size() > 1 ? ", " : "") + make(*item);
    return text + "]";
  }
  std::string make(const PickleDict& dict) const {
    const bool plain = std::all_of(dict.items.begin(), dict.items.end(), [](const auto& item) {
      return item.first->string() != nullptr && !item.first->string()->text.starts_with("__");
    });
    std::string text = plain ? "{" : "[";
    for (const auto& [key, item] : last_of_each(dict)) {
      if (text.size() > 1) text += ", ";
      text += plain ? make(*key) + ": " + make(*item) : "[" + make(*key) + ", " + make(*item) + "]";
    }
    return plain ? text + "}" : tagged("__dict__", text + "]");
  }
  /// The items in their order. Of a key that repeats only the last value is kept.
  static std::vector<std::pair<PickleRef, PickleRef>> last_of_each(const PickleDict& dict) {
    std::map<std::string_view, std::size_t> at;
    std::vector<std::pair<PickleRef, PickleRef>> kept;
    for (const auto& item : dict.items) {
      const auto* key = item.first->string();
      const auto [found, is_new] = key != nullptr ? at.emplace(key->text, kept.size()) : std::pair(at.end(), true);
      if (is_new) {
        kept.push_back(item);
      } else {
        kept[found->second].second = item.second;
      }
    }
    return kept;
  }

  std::string make(const PickleObject& object) const {
    const auto& global = *object.callable->global();
    const auto& args = object.args->tuple()->items;
    const auto is_builtin = [&](std::string_view name) {
      return global.is("builtins", name) || global.is("__builtin__", name);
    };
    const bool bare = object.state == nullptr && object.items.items.empty() && object.entries.items.empty();
    if (global.is("collections", "OrderedDict") && args.empty()) return make(object.entries);
    if (global.is("collections", "defaultdict")) return make(object.entries);
    if (bare && args.size() == 1) {
      if (global.is("torch", "Size") && args[0]->tuple() != nullptr) {
        return tagged("__size__", make(args[0]->tuple()->items));
      }
      if (global.is("collections", "Counter") && args[0]->dict() != nullptr) return make(*args[0]);
      if ((is_builtin("set") || is_builtin("frozenset")) && args[0]->list() != nullptr) {
        return tagged("__set__", make(args[0]->list()->items));
      }
      if (is_builtin("bytearray")) return make(*args[0]);
    }
    if (bare && args.empty() && (is_builtin("bytes") || is_builtin("bytearray"))) return tagged("__bytes__", "\"\"");
    if (bare && args.size() == 2) {
      if (is_builtin("complex")) return tagged("__complex__", make(args));
      if (global.is("_codecs", "encode") && args[0]->string() != nullptr) {
        if (const auto bytes = latin1(args[0]->string()->text)) return tagged("__bytes__", hex(*bytes));
      }
    }
    return make_other(object, global, args);
  }
  std::string make_other(const PickleObject& object, const PickleGlobal& global,
                         const std::vector<PickleRef>& args) const {
    std::string text = "{\"__object__\": " + dotted(global);
    if (!args.empty()) text += ", \"args\": " + make(args);
    if (object.kwargs != nullptr) text += ", \"kwargs\": " + make(*object.kwargs);
    if (!object.items.items.empty()) text += ", \"items\": " + make(object.items.items);
    if (!object.entries.items.empty()) text += ", \"entries\": " + make(object.entries);
    if (object.state != nullptr) text += ", \"state\": " + make(*object.state);
    return text + "}";
  }

  const std::string& name_;
};

}  // namespace

std::string value_to_json(const PickleValue& value, const std::string& name) { return JsonText(name).make(value); }

std::string values_to_json(const Source& source) {
  std::string text;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& name = source.values()[i].name;
    const auto loaded = source.value(i);
    text += (i == 0 ? "{\n " : ",\n ") + json_string(name) + ": " + value_to_json(*loaded.value, name);
  }
  return text.empty() ? text : text + "\n}\n";
}

}  // namespace fsdp
