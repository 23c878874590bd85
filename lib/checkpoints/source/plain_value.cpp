#include "lib/checkpoints/source/plain_value.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"

namespace fsdp {
namespace {

using Name = std::pair<std::string_view, std::string_view>;

/// Classes whose construction from plain arguments gives data. Protocol 2 calls the module `builtins` `__builtin__`.
constexpr std::array<Name, 18> kPlainClasses{{{"collections", "OrderedDict"},
                                              {"collections", "defaultdict"},
                                              {"collections", "Counter"},
                                              {"collections", "deque"},
                                              {"torch", "Size"},
                                              {"torch", "device"},
                                              {"torch.serialization", "_get_layout"},
                                              {"argparse", "Namespace"},
                                              {"types", "SimpleNamespace"},
                                              {"_codecs", "encode"},
                                              {"pathlib", "PosixPath"},
                                              {"pathlib", "PurePosixPath"},
                                              {"builtins", "set"},
                                              {"builtins", "frozenset"},
                                              {"builtins", "bytearray"},
                                              {"builtins", "bytes"},
                                              {"builtins", "complex"},
                                              {"builtins", "slice"}}};

/// Builtin classes that may occur by name, such as the default factory of a defaultdict.
constexpr std::array<std::string_view, 10> kPlainBuiltins{"int",  "long", "float", "str", "bool",
                                                          "list", "dict", "tuple", "set", "bytes"};

bool is_builtin(std::string_view module) { return module == "builtins" || module == "__builtin__"; }

bool is_plain_class(const PickleGlobal& global) {
  const Name name(is_builtin(global.module) ? "builtins" : global.module, global.name);
  return std::find(kPlainClasses.begin(), kPlainClasses.end(), name) != kPlainClasses.end();
}

/// True for a dtype, layout or memory format: a lower-case constant of torch. Functions are excluded, since a REDUCE
/// could call them.
bool is_plain_constant(const PickleGlobal& global) {
  if (is_builtin(global.module)) {
    return std::find(kPlainBuiltins.begin(), kPlainBuiltins.end(), global.name) != kPlainBuiltins.end();
  }
  constexpr std::array<std::string_view, 8> prefixes{"float",  "bfloat16", "int",  "uint",
                                                     "double", "half",     "bool", "complex"};
  return global.module == "torch" && std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) {
           return global.name.starts_with(prefix);
         });
}

class PlainCheck {
 public:
  PlainCheck(const std::string& name, const std::string& file) : name_(name), file_(file) {}

  void check(const PickleValue& value) const {
    if (is_tensor_like(value)) fail(value, "holds a tensor where only plain values can be taken along");
    if (const auto* global = value.global()) {
      if (!is_plain_constant(*global)) refuse(value, *global);
      return;
    }
    if (const auto* object = value.object()) {
      const auto* callable = object->callable->global();
      if (!is_plain_class(*callable)) refuse(value, *callable);
      for_each_child(value, [&](PickleRef child) {
        if (child != object->callable) check(*child);
      });
      return;
    }
    for_each_child(value, [&](PickleRef child) { check(*child); });
  }

 private:
  [[noreturn]] void fail(const PickleValue& at, const std::string& what, const Advice& advice = {}) const {
    throw ValueNotRead(file_, at.offset_bytes, "value \"" + name_.substr(0, 200) + "\" " + what, advice);
  }
  [[noreturn]] void refuse(const PickleValue& at, const PickleGlobal& global) const {
    fail(at,
         "needs " + std::string(global.module.substr(0, 100)) + "." + std::string(global.name.substr(0, 100)) +
             ", which is refused: only tensors and plain values are read, and nothing is imported or called",
         Remedy::model_only_or_exclude);
  }

  const std::string& name_;
  const std::string& file_;
};

}  // namespace

void check_plain_value(const PickleValue& value, const std::string& name, const std::string& file) {
  PlainCheck(name, file).check(value);
}

bool is_plain_value(const PickleValue& value) {
  try {
    check_plain_value(value, "", "");
    return true;
  } catch (const ValueNotRead&) {
    return false;
  }
}

bool is_tensor_like(const PickleValue& value) {
  if (value.persistent() != nullptr) return true;
  const auto* object = value.object();
  if (object == nullptr) return false;
  const auto module = object->callable->global()->module;
  return module == "torch._utils" || module == "torch._tensor";
}

std::shared_ptr<const PickleDocument> document_of_json(const nlohmann::json& json, const std::string& name) {
  PickleWriter writer;
  writer.json(json);
  PickleSource pickle;
  pickle.text = std::make_shared<const std::string>(writer.finish());
  pickle.file = name;
  return std::make_shared<const PickleDocument>(read_pickle(pickle));
}

bool holds_tensor(const PickleValue& value) {
  bool found = is_tensor_like(value);
  if (!found) for_each_child(value, [&](PickleRef child) { found = found || holds_tensor(*child); });
  return found;
}

}  // namespace fsdp
