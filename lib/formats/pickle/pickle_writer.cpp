// Source of what torch.load(weights_only=True) accepts: torch 2.11 torch/_weights_only_unpickler.py,
// _get_allowed_globals.
#include "lib/formats/pickle/pickle_writer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {
namespace {

constexpr std::array kDtypeNames{"float64",         "float32",   "float16",    "bfloat16",      "int64",
                                 "int32",           "int16",     "int8",       "uint8",         "uint16",
                                 "uint32",          "uint64",    "bool",       "float8_e4m3fn", "float8_e5m2",
                                 "complex32",       "complex64", "complex128", "quint8",        "float8_e4m3fnuz",
                                 "float8_e5m2fnuz", "qint8",     "qint32",     "float8_e8m0fnu"};

bool is_builtin(const PickleGlobal& global, std::string_view name) {
  return global.is("builtins", name) || global.is("__builtin__", name);
}

/// True for callables that weights_only calls on plain values.
bool is_allowed_callable(const PickleGlobal& global) {
  return global.is("collections", "OrderedDict") || global.is("collections", "Counter") || global.is("torch", "Size") ||
         global.is("torch", "device") || global.is("torch.serialization", "_get_layout") ||
         global.is("_codecs", "encode") || is_builtin(global, "set") || is_builtin(global, "bytearray") ||
         is_builtin(global, "complex");
}

bool is_allowed_constant(const PickleGlobal& global) {
  return global.module == "torch" &&
         std::find(kDtypeNames.begin(), kDtypeNames.end(), global.name) != kDtypeNames.end();
}

class Emitter {
 public:
  Emitter(PickleWriter& pickle, PickleStyle style, const std::string& name)
      : pickle_(pickle), style_(style), name_(name) {}

  void emit(const PickleValue& value) {
    if (value.is_none()) return pickle_.none();
    if (const auto* boolean = value.boolean()) return pickle_.boolean(*boolean);
    if (const auto* integer = value.integer()) return pickle_.integer(*integer);
    if (const auto* real = value.real()) return pickle_.real(*real);
    if (const auto* big = value.big_integer()) return pickle_.big_integer(big->digits);
    if (const auto* string = value.string()) return pickle_.string(string->text);
    if (const auto* bytes = value.bytes()) return pickle_.bytes(bytes->data);
    if (const auto* list = value.list()) return emit_list(list->items);
    if (const auto* tuple = value.tuple()) return emit_tuple(tuple->items);
    if (const auto* set = value.set()) return emit_set(set->items);
    if (const auto* dict = value.dict()) return emit_dict(*dict);
    if (const auto* global = value.global()) return emit_constant(value, *global);
    if (const auto* object = value.object()) return emit_object(value, *object);
    refuse(value);
  }

 private:
  [[noreturn]] void refuse(const PickleValue& value) const {
    throw RequestError(
        "value \"" + name_ + "\" holds " + describe(value) + ", which " +
            (style_ == PickleStyle::weights_only ? "torch.load(weights_only=True) does not read" : "cannot be written"),
        {Remedy::exclude, name_});
  }

  void emit_list(const std::vector<PickleRef>& items) {
    pickle_.empty_list();
    pickle_.mark();
    for (const auto* item : items) emit(*item);
    pickle_.append_items();
  }
  void emit_tuple(const std::vector<PickleRef>& items) {
    if (items.empty()) return pickle_.empty_tuple();
    pickle_.mark();
    for (const auto* item : items) emit(*item);
    pickle_.tuple();
  }
  void emit_set(const std::vector<PickleRef>& items) {
    pickle_.global("__builtin__", "set");
    emit_list(items);
    pickle_.tuple1();
    pickle_.reduce();
  }
  void emit_entries(const PickleDict& dict) {
    pickle_.mark();
    for (const auto& [key, item] : dict.items) {
      emit(*key);
      emit(*item);
    }
    pickle_.set_items();
  }
  void emit_dict(const PickleDict& dict) {
    pickle_.empty_dict();
    emit_entries(dict);
  }
  void emit_constant(const PickleValue& value, const PickleGlobal& global) {
    if (style_ == PickleStyle::weights_only && !is_allowed_constant(global)) refuse(value);
    pickle_.global(global.module, global.name);
  }

  void emit_object(const PickleValue& value, const PickleObject& object) {
    if (object.kwargs != nullptr) refuse(value);  // protocol 2 has no opcode for keyword arguments
    if (style_ == PickleStyle::weights_only) return emit_safely(value, object);
    const auto& global = *object.callable->global();
    emit_construction(object, global);
    if (object.state != nullptr) {
      emit(*object.state);
      pickle_.build();
    }
  }
  void emit_construction(const PickleObject& object, const PickleGlobal& global) {
    pickle_.global(global.module, global.name);
    emit_tuple(object.args->tuple()->items);
    if (object.is_new) {
      pickle_.new_object();
    } else {
      pickle_.reduce();
    }
    if (!object.items.items.empty()) {
      pickle_.mark();
      for (const auto* item : object.items.items) emit(*item);
      pickle_.append_items();
    }
    if (!object.entries.items.empty()) emit_entries(object.entries);
  }
  void emit_safely(const PickleValue& value, const PickleObject& object) {
    const auto& global = *object.callable->global();
    const auto& args = object.args->tuple()->items;
    if (global.is("collections", "defaultdict")) return emit_dict(object.entries);
    if (is_builtin(global, "frozenset") && args.size() <= 1) {
      const auto* list = args.empty() ? nullptr : args[0]->list();
      if (!args.empty() && list == nullptr) refuse(value);
      return emit_set(list != nullptr ? list->items : std::vector<PickleRef>());
    }
    if (global.is("argparse", "Namespace") || global.is("types", "SimpleNamespace")) {
      const auto* state = object.state != nullptr ? object.state->dict() : nullptr;
      if (object.state != nullptr && state == nullptr) refuse(value);
      return emit_dict(state != nullptr ? *state : PickleDict());
    }
    if (!is_allowed_callable(global) || object.is_new || !object.items.items.empty()) refuse(value);
    emit_construction(object, global);  // the state holds attributes of the OrderedDict and no items: it is left out
  }

  PickleWriter& pickle_;
  const PickleStyle style_;
  const std::string& name_;
};

}  // namespace

using detail::append_le;

PickleWriter::PickleWriter() : text_("\x80\x02") {}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    op('K');
    append_le(text_, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value <= 0xffff) {
    op('M');
    append_le(text_, static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    op('J');
    append_le(text_, static_cast<std::int32_t>(value));
  } else {
    text_ += "\x8a\x08";
    append_le(text_, value);
  }
}

void PickleWriter::unsigned_integer(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    integer(static_cast<std::int64_t>(value));
  } else {
    text_ += "\x8a\x09";
    append_le(text_, value);
    text_.push_back('\0');  // the sign
  }
}

void PickleWriter::big_integer(std::string_view digits) {
  constexpr std::size_t longest_bytes = 255, longest_digits = 616;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  std::string value(1, '\0');  // two's complement, little-endian, with room for the sign
  for (const char digit : digits.substr(0, longest_digits)) {
    if (digit < '0' || digit > '9') throw std::logic_error("PickleWriter::big_integer: not a decimal number");
    unsigned carry = static_cast<unsigned>(digit - '0');
    for (auto& byte : value) {
      carry += static_cast<unsigned char>(byte) * 10u;
      byte = static_cast<char>(carry & 0xff);
      carry >>= 8;
    }
    if (carry != 0) value.push_back(static_cast<char>(carry));
  }
  if ((value.back() & 0x80) != 0) value.push_back('\0');
  if (negative) {
    unsigned carry = 1;
    for (auto& byte : value) {
      carry += static_cast<unsigned char>(~byte);
      byte = static_cast<char>(carry & 0xff);
      carry >>= 8;
    }
  }
  if (value.size() > longest_bytes || digits.size() > longest_digits) {
    throw RequestError("an integer of " + std::to_string(digits.size()) +
                       " digits in a checkpoint; 255 bytes are most");
  }
  text_ += '\x8a';
  text_.push_back(static_cast<char>(value.size()));
  text_ += value;
}

void PickleWriter::real(double value) {
  op('G');
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) text_.push_back(static_cast<char>(bits >> shift & 0xff));
}

void PickleWriter::string(std::string_view text) {
  constexpr std::size_t longest_memoized = 1024;
  if (!is_utf8(text)) throw RequestError("a string in a checkpoint is not UTF-8");
  std::string memo_key = text.size() <= longest_memoized ? "s" + std::string(text) : std::string();
  if (!memo_key.empty() && recall(memo_key)) return;
  if (text.size() > std::numeric_limits<std::uint32_t>::max())
    throw RequestError("a string of 4 GiB or more in a checkpoint");
  op('X');
  append_le(text_, static_cast<std::uint32_t>(text.size()));
  text_ += text;
  if (!memo_key.empty()) memoize(std::move(memo_key));
}

void PickleWriter::bytes(std::string_view data) {
  std::string text;  // each byte as the character with that code point
  text.reserve(data.size());
  for (const char byte : data) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80) {
      text.push_back(byte);
    } else {
      text.push_back(static_cast<char>(0xc0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  global("_codecs", "encode");
  string(text);
  string("latin1");
  tuple2();
  reduce();
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  if ((std::string(module) += name).find('\n') != std::string::npos) {
    throw RequestError("a class name in a checkpoint has a line break");
  }
  std::string line = std::string(module) + "\n" + std::string(name) + "\n";
  std::string memo_key = "c" + line;
  if (recall(memo_key)) return;
  op('c');
  text_ += line;
  memoize(std::move(memo_key));
}

bool PickleWriter::recall(const std::string& memo_key) {
  const auto found = memo_.find(memo_key);
  if (found == memo_.end()) return false;
  if (found->second <= 0xff) {
    op('h');
    append_le(text_, static_cast<std::uint8_t>(found->second));
  } else {
    op('j');
    append_le(text_, found->second);
  }
  return true;
}

void PickleWriter::memoize(std::string memo_key) {
  const auto index = static_cast<std::uint32_t>(memo_.size());
  if (index <= 0xff) {
    op('q');
    append_le(text_, static_cast<std::uint8_t>(index));
  } else {
    op('r');
    append_le(text_, index);
  }
  memo_.emplace(std::move(memo_key), index);
}

void PickleWriter::json(const nlohmann::json& value) { json(value, 0); }

void PickleWriter::json(const nlohmann::json& value, int depth) {
  constexpr int max_depth = 100;
  if (depth > max_depth) throw RequestError("a checkpoint value is nested deeper than 100 levels");
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return none();
    case nlohmann::json::value_t::boolean:
      return boolean(value.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return integer(value.get<std::int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      return unsigned_integer(value.get<std::uint64_t>());
    case nlohmann::json::value_t::number_float:
      return real(value.get<double>());
    case nlohmann::json::value_t::string:
      return string(value.get_ref<const std::string&>());
    case nlohmann::json::value_t::array:
      empty_list();
      mark();
      for (const auto& item : value) json(item, depth + 1);
      return append_items();
    case nlohmann::json::value_t::object:
      empty_dict();
      mark();
      for (const auto& [key, item] : value.items()) {
        string(key);
        json(item, depth + 1);
      }
      return set_items();
    default:
      throw RequestError("a checkpoint value is neither None, bool, int, float, str, list nor dict");
  }
}

std::string PickleWriter::finish() {
  op('.');
  return std::move(text_);
}

void emit_pickle_value(PickleWriter& pickle, const PickleValue& value, PickleStyle style, const std::string& name) {
  Emitter(pickle, style, name).emit(value);
}

}  // namespace fsdp
