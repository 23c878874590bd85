#include "lib/checkpoints/source/pickle_node.hpp"

#include <algorithm>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

/// The text of a key that is a str or an int; nothing for any other key.
std::optional<std::string> key_text_of(const PickleValue& key) {
  if (key.string() != nullptr) return std::string(key.string()->text);
  if (key.integer() != nullptr) return std::to_string(*key.integer());
  return std::nullopt;
}

}  // namespace

void PickleNode::fail(const std::string& what) const {
  throw FormatError(file, value->offset_bytes,
                    (key.empty() ? "the object" : "\"" + key.substr(0, 300) + "\"") + " " + what);
}

std::optional<PickleNode> PickleNode::find(std::string_view name) const {
  const auto* mapping = pickled_mapping(*value);
  if (mapping == nullptr) return std::nullopt;
  for (auto item = mapping->items.rbegin(); item != mapping->items.rend(); ++item)
    if (const auto* text = item->first->string();
        text != nullptr ? text->text == name : key_text_of(*item->first) == name)
      return PickleNode{item->second, file, key.empty() ? std::string(name) : key + "." + std::string(name)};
  return std::nullopt;
}

PickleNode PickleNode::at(std::string_view name) const {
  if (pickled_mapping(*value) == nullptr) fail("should be a dict and is " + describe(*value));
  auto found = find(name);
  if (!found) fail("has no \"" + std::string(name) + "\"");
  return std::move(*found);
}

bool PickleNode::is_open_dict() const {
  const auto* mapping = pickled_mapping(*value);
  return mapping != nullptr && !mapping->items.empty() &&
         std::ranges::all_of(mapping->items, [](const auto& item) { return key_text_of(*item.first).has_value(); });
}

std::vector<std::pair<std::string, PickleNode>> PickleNode::entries() const {
  const auto* mapping = pickled_mapping(*value);
  if (mapping == nullptr) fail("should be a dict and is " + describe(*value));
  std::vector<std::pair<std::string, PickleNode>> found;
  for (const auto& [name, item] : mapping->items) {
    auto text = key_text_of(*name);
    if (!text) fail("has a key that is " + describe(*name));
    auto place = key.empty() ? *text : key + "." + *text;
    found.emplace_back(std::move(*text), PickleNode{item, file, std::move(place)});
  }
  return found;
}

std::vector<PickleNode> PickleNode::items() const {
  const auto* list = value->list();
  const auto* tuple = value->tuple();
  if (list == nullptr && tuple == nullptr) fail("should be a list and is " + describe(*value));
  std::vector<PickleNode> found;
  for (const auto item : list != nullptr ? list->items : tuple->items)
    found.push_back({item, file, key + "." + std::to_string(found.size())});
  return found;
}

std::int64_t PickleNode::integer() const {
  if (value->integer() == nullptr) fail("should be an int and is " + describe(*value));
  return *value->integer();
}

std::uint64_t PickleNode::count() const {
  const auto number = integer();
  if (number < 0) fail("should be a count and is " + std::to_string(number));
  return static_cast<std::uint64_t>(number);
}

std::string PickleNode::text() const {
  if (value->string() == nullptr) fail("should be a str and is " + describe(*value));
  return std::string(value->string()->text);
}

Shape PickleNode::shape() const {
  PickleNode sizes = *this;
  if (const auto* object = value->object_of("torch", "Size")) {
    if (object->args->tuple()->items.size() != 1) fail("is no shape");
    sizes.value = object->args->tuple()->items[0];
  }
  Shape shape;
  for (const auto& size : sizes.items()) shape.push_back(static_cast<std::int64_t>(size.count()));
  if (shape.size() > kMaxDims) fail("has too many dims");
  try {
    num_elements(shape);
  } catch (const FormatError& error) {
    fail(std::string("is no shape: ") + error.what());
  }
  return shape;
}

}  // namespace fsdp
