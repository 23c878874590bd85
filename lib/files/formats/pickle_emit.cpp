// Source of what weights_only takes: torch 2.11 torch/_weights_only_unpickler.py, _get_allowed_globals.
#include "lib/files/formats/pickle_emit.hpp"

#include <algorithm>
#include <array>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::array dtype_names{"float64",         "float32",   "float16",    "bfloat16",      "int64",
                                 "int32",           "int16",     "int8",       "uint8",         "uint16",
                                 "uint32",          "uint64",    "bool",       "float8_e4m3fn", "float8_e5m2",
                                 "complex32",       "complex64", "complex128", "quint8",        "float8_e4m3fnuz",
                                 "float8_e5m2fnuz", "qint8",     "qint32",     "float8_e8m0fnu"};

bool is_builtin(const PickleGlobal& global, std::string_view name) {
  return global.is("builtins", name) || global.is("__builtin__", name);
}

/// Callables that weights_only lets run on plain values.
bool is_allowed_callable(const PickleGlobal& global) {
  return global.is("collections", "OrderedDict") || global.is("collections", "Counter") || global.is("torch", "Size") ||
         global.is("torch", "device") || global.is("torch.serialization", "_get_layout") ||
         global.is("_codecs", "encode") || is_builtin(global, "set") || is_builtin(global, "bytearray") ||
         is_builtin(global, "complex");
}

bool is_allowed_constant(const PickleGlobal& global) {
  return global.module == "torch" &&
         std::find(dtype_names.begin(), dtype_names.end(), global.name) != dtype_names.end();
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
    throw UsageError(
        "value \"" + name_ + "\" holds " + describe(value) + ", which " +
        (style_ == PickleStyle::weights_only ? "torch.load(weights_only=True) does not read" : "cannot be written") +
        "; leave it out with --exclude '" + name_ + "'");
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
    if (object.kwargs != nullptr) refuse(value);  // protocol 2 has no opcode for it
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
    emit_construction(object, global);  // a state is an OrderedDict's attributes: not part of its value
  }

  PickleWriter& pickle_;
  const PickleStyle style_;
  const std::string& name_;
};

}  // namespace

void emit_pickle_value(PickleWriter& pickle, const PickleValue& value, PickleStyle style, const std::string& name) {
  Emitter(pickle, style, name).emit(value);
}

}  // namespace fsdp
