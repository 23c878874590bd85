#include "lib/checkpoints/programs/torch_save/nested_dict.hpp"

#include <algorithm>
#include <unordered_map>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxNameBytes = 256ull << 20;  // all names: a shared value may repeat under many

/// The parts of a state of a torchao optimizer: a tensor subclass that wraps tensors. The wrapped tensors can be read
/// without the class. Null for any other value.
const PickleDict* torchao_state(const PickleValue& value) {
  const auto* object = value.object_of("torch._tensor", "_rebuild_from_type_v2");
  if (object == nullptr || object->args->tuple()->items.size() != 4) return nullptr;
  const auto& args = object->args->tuple()->items;
  const auto* type = args[1]->global();
  const bool known = type != nullptr && type->module.starts_with("torchao.") &&
                     (type->name == "OptimState8bit" || type->name == "OptimState4bit");
  return known ? args[3]->dict() : nullptr;
}

class Flattener {
 public:
  Flattener(const PickleDocument& document, const std::string& file) : document_(document), file_(file) {}

  FlatObject run(bool may_lack_tensors) {
    const PickleValue& root = *document_.root;
    if (pickled_mapping(root) == nullptr && root.list() == nullptr && root.tuple() == nullptr) {
      fail(root, "a dict of tensors was expected, found " + describe(root));
    }
    if (root.object() != nullptr)
      for (const auto argument : root.object()->args->tuple()->items)
        if (argument->dict() == nullptr) check_plain_value(*argument, "", file_);
    visit(root);
    check_names();
    // Without a single tensor in the file, the value that was not read is the likely place of the tensors: report it.
    if (flat_.tensors.empty() && !may_lack_tensors)
      for (const auto& found : flat_.values) check_plain_value(*found.value, found.name, file_);
    return std::move(flat_);
  }

 private:
  [[noreturn]] void fail(const PickleValue& at, const std::string& what) const {
    throw FormatError(file_, at.offset_bytes, what);
  }

  void visit(const PickleValue& value) {
    if (const auto* parts = torchao_state(value)) {
      for (const auto& [key, item] : parts->items) visit_below(key_text(*key), *item);
      return;
    }
    if (auto view = tensor_view(value, file_)) {
      flat_.tensors.push_back({name(value), path_, std::move(*view)});
      return;
    }
    const auto* mapping = pickled_mapping(value);
    if (mapping != nullptr && (path_.empty() || can_be_names(value, *mapping))) {
      for (const auto& [key, item] : mapping->items) visit_below(key_text(*key), *item);
    } else if (value.list() != nullptr && (path_.empty() || is_nested(*value.list()))) {
      visit_items(value.list()->items);
    } else if (value.tuple() != nullptr && (path_.empty() || holds_tensor(value))) {
      visit_items(value.tuple()->items);
    } else {
      flat_.values.push_back({name(value), path_, &value});
    }
  }
  /// True when the keys of a mapping can be parts of names and the arguments of its class (such as the default factory
  /// of a defaultdict) are plain. The counts of a Counter are an argument, too: a dict, which is visited.
  bool can_be_names(const PickleValue& value, const PickleDict& mapping) const {
    for (const auto& [key, item] : mapping.items)
      if (!can_be_name(*key)) return false;
    if (value.object() == nullptr) return true;
    return std::ranges::all_of(value.object()->args->tuple()->items, [&](PickleRef argument) {
      return argument->dict() != nullptr || is_plain_value(*argument);
    });
  }
  void visit_items(const std::vector<PickleRef>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) visit_below(static_cast<std::int64_t>(i), *items[i]);
  }
  template <typename Element>
  void visit_below(Element element, const PickleValue& value) {
    path_.emplace_back(std::move(element));
    visit(value);
    path_.pop_back();
  }

  bool is_nested(const PickleList& list) {
    return std::any_of(list.items.begin(), list.items.end(), [&](PickleRef item) {
      return item->list() != nullptr || pickled_mapping(*item) != nullptr || holds_tensor(*item);
    });
  }
  /// Caches the result of fsdp::holds_tensor() for each value.
  bool holds_tensor(const PickleValue& value) {
    const auto known = holds_tensor_.find(value.index);
    if (known != holds_tensor_.end()) return known->second;
    bool found = is_tensor_like(value);
    if (!found) for_each_child(value, [&](PickleRef child) { found = found || holds_tensor(*child); });
    return holds_tensor_[value.index] = found;
  }

  static bool can_be_name(const PickleValue& key) {
    return key.string() != nullptr || key.integer() != nullptr || key.big_integer() != nullptr ||
           key.boolean() != nullptr || key.is_none();
  }
  std::string key_text(const PickleValue& key) const {
    if (key.string() != nullptr) return std::string(key.string()->text);
    if (key.integer() != nullptr) return std::to_string(*key.integer());
    if (key.big_integer() != nullptr) return key.big_integer()->digits;
    if (key.boolean() != nullptr) return *key.boolean() ? "True" : "False";
    if (key.is_none()) return "None";
    fail(key, "a dict key is " + describe(key) + "; str and int can become part of a name");
  }
  std::string joined() const {
    std::string text;
    for (const auto& element : path_) {
      if (&element != &path_.front()) text += '.';
      const auto* key = std::get_if<std::string>(&element);
      text += key != nullptr ? *key : std::to_string(std::get<std::int64_t>(element));
    }
    return text;
  }
  std::string name(const PickleValue& value) {
    auto text = joined();
    name_bytes_ += text.size() + path_.size() * sizeof(StatePath::value_type);
    if (name_bytes_ > kMaxNameBytes) fail(value, "the names of all entries together are too long");
    return text;
  }

  /// Checks that all names differ. \throws FormatError naming both places
  void check_names() const {
    std::unordered_map<std::string_view, const StatePath*> seen;
    const auto check = [&](const std::string& entry, const StatePath& path) {
      const auto [place, is_new] = seen.emplace(entry, &path);
      if (is_new) return;
      const auto one = shown(*place->second), other = shown(path);
      throw FormatError(file_ + ": " + one + " and " + other +
                        (one == other ? ", whose keys differ in their type alone (1 and \"1\")," : "") +
                        " both get the name \"" + entry.substr(0, 200) + "\"");
    };
    for (const auto& tensor : flat_.tensors) check(tensor.name, tensor.path);
    for (const auto& value : flat_.values) check(value.name, value.path);
  }
  static std::string shown(const StatePath& path) {
    std::string text;
    for (const auto& element : path) {
      const auto* key = std::get_if<std::string>(&element);
      text += key != nullptr ? "['" + key->substr(0, 200) + "']"
                             : "[" + std::to_string(std::get<std::int64_t>(element)) + "]";
    }
    return text;
  }

  const PickleDocument& document_;
  const std::string& file_;
  FlatObject flat_;
  StatePath path_;
  std::uint64_t name_bytes_ = 0;
  std::unordered_map<std::uint32_t, bool> holds_tensor_;
};

}  // namespace

FlatObject flatten(const PickleDocument& document, const std::string& file, bool may_lack_tensors) {
  return Flattener(document, file).run(may_lack_tensors);
}

}  // namespace fsdp
