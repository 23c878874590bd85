// Source: torch 2.11 torch/distributed/checkpoint/_nested_dict.py and _traverse.py (set_element).
#include "lib/files/write/nested.hpp"

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::size_t max_depth = 100;

[[noreturn]] void conflict(const std::string& name, const std::string& why) {
  throw UsageError("\"" + name + "\" cannot be placed in a nested dict: " + why +
                   "; rename it with --rename or leave " + "it out with --exclude");
}

/// Makes an empty node a container of type Container. \throws UsageError when it is something else already
template <typename Container>
Container& as_container(NestedNode& node, const std::string& name, const char* what) {
  if (std::holds_alternative<std::monostate>(node.content)) node.content = Container();
  if (auto* held = std::get_if<Container>(&node.content)) return *held;
  conflict(name, std::string("its path needs ") + what + " where another entry has put something else");
}

NestedNode& child(NestedNode& node, const StatePath::value_type& part, const std::string& name) {
  std::unique_ptr<NestedNode>* slot = nullptr;
  if (const auto* position = std::get_if<std::int64_t>(&part)) {
    if (*position < 0) conflict(name, "its path has the list position " + std::to_string(*position));
    slot = &as_container<NestedList>(node, name, "a list").items[*position];
  } else {
    const auto& key = std::get<std::string>(part);
    auto& dict = as_container<NestedDict>(node, name, "a dict");
    const auto [found, is_new] = dict.positions.emplace(key, dict.items.size());
    if (is_new) dict.items.emplace_back(key, nullptr);
    slot = &dict.items[found->second].second;
  }
  if (*slot == nullptr) *slot = std::make_unique<NestedNode>();
  return **slot;
}

void place(NestedNode& root, const StatePath& path, const std::string& name, NestedLeaf leaf) {
  if (path.size() > max_depth) conflict(name, "its path has more than " + std::to_string(max_depth) + " elements");
  auto* node = &root;
  for (const auto& part : path) node = &child(*node, part, name);
  if (!std::holds_alternative<std::monostate>(node->content)) conflict(name, "its place is taken by another entry");
  node->content = leaf;
}

void check_lists(const NestedNode& node, const std::string& where) {
  if (const auto* dict = std::get_if<NestedDict>(&node.content)) {
    for (const auto& [key, item] : dict->items) check_lists(*item, where.empty() ? key : where + "." + key);
  } else if (const auto* list = std::get_if<NestedList>(&node.content)) {
    std::int64_t expected = 0;
    for (const auto& [position, item] : list->items) {
      if (position != expected) {
        throw UsageError("the list \"" + where + "\" has nothing at position " + std::to_string(expected) +
                         " but something at " + std::to_string(position) +
                         "; leave the whole list out with --exclude '" + where + ".*', or write another format");
      }
      check_lists(*item, where.empty() ? std::to_string(position) : where + "." + std::to_string(position));
      ++expected;
    }
  }
}

}  // namespace

NestedNode nest(const Source& source) {
  NestedNode root;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    place(root, source.tensors()[i].path, source.tensors()[i].name, {true, i});
  }
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    place(root, source.values()[i].path, source.values()[i].name, {false, i});
  }
  if (std::holds_alternative<std::monostate>(root.content)) root.content = NestedDict();
  check_lists(root, "");
  return root;
}

}  // namespace fsdp
