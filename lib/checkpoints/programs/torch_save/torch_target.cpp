// Source: torch 2.11 torch/distributed/checkpoint/_nested_dict.py and _traverse.py (set_element).
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/torch_blob_writer.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kMaxNestingDepth = 100;

[[noreturn]] void conflict(const std::string& name, const std::string& why) {
  throw RequestError("\"" + name + "\" cannot be placed in a nested dict: " + why, Remedy::rename_or_exclude);
}

/// Makes an empty node a container of type Container. \throws RequestError when the node has other content
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
  if (path.size() > kMaxNestingDepth)
    conflict(name, "its path has more than " + std::to_string(kMaxNestingDepth) + " elements");
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
        throw RequestError("the list \"" + where + "\" has nothing at position " + std::to_string(expected) +
                               " but something at " + std::to_string(position),
                           {Remedy::exclude_list, where + ".*"});
      }
      check_lists(*item, where.empty() ? std::to_string(position) : where + "." + std::to_string(position));
      ++expected;
    }
  }
}

/// The name that torch.save gives the archive in a file of this name.
std::string archive_name(const std::filesystem::path& file) {
  constexpr std::size_t longest = 1000;
  const auto stem = file.stem().string();
  return stem.empty() || stem.size() > longest || !is_utf8(stem) ? "archive" : stem;
}

class NestedPickle {
 public:
  explicit NestedPickle(const Source& source) : source_(source) {}

  std::string write() {
    emit(nest(source_));
    return pickle_.finish();
  }
  /// Numbers of tensors of the source in the order in which they were written: storage k belongs to tensor order()[k].
  const std::vector<std::size_t>& order() const { return order_; }

 private:
  void emit(const NestedNode& node) {
    if (const auto* dict = std::get_if<NestedDict>(&node.content)) {
      pickle_.empty_dict();
      pickle_.mark();
      for (const auto& [key, item] : dict->items) {
        pickle_.string(key);
        emit(*item);
      }
      pickle_.set_items();
    } else if (const auto* list = std::get_if<NestedList>(&node.content)) {
      pickle_.empty_list();
      pickle_.mark();
      for (const auto& [position, item] : list->items) emit(*item);
      pickle_.append_items();
    } else {
      emit(std::get<NestedLeaf>(node.content));
    }
  }
  void emit(const NestedLeaf& leaf) {
    if (leaf.is_tensor) {
      const auto& tensor = source_.tensors()[leaf.number];
      pickle_tensor(pickle_, tensor.dtype, tensor.shape, std::to_string(order_.size()));
      order_.push_back(leaf.number);
    } else {
      const auto loaded = source_.value(leaf.number);
      emit_pickle_value(pickle_, *loaded.value, PickleStyle::weights_only, source_.values()[leaf.number].name);
    }
  }

  const Source& source_;
  PickleWriter pickle_;
  std::vector<std::size_t> order_;
};

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

TorchTarget::TorchTarget(const std::filesystem::path& output)
    : name_(output.filename()), zip_(archive_name(output.filename())) {}

Layout TorchTarget::plan(const Source& source) {
  zip_ = ZipPlan(archive_name(name_));
  NestedPickle pickle(source);
  zip_.add("data.pkl", pickle.write());
  zip_.add(".format_version", "1");  // the order of the storages is that of the pickle
  zip_.add(".storage_alignment", "64");
  zip_.add("byteorder", "little");
  Layout layout;
  for (std::size_t key = 0; key < pickle.order().size(); ++key) {
    const auto number = pickle.order()[key];
    const auto& tensor = source.tensors()[number];
    const auto count = element_count(tensor.shape);
    const auto offset = zip_.add_data("data/" + std::to_string(key), count * dtype_size_bytes(tensor.dtype));
    layout.segments.push_back({.offset_bytes = offset, .tensor = number, .count = count});
  }
  zip_.add("version", "3\n");
  zip_.finish();
  layout.files.push_back({name_, zip_.size_bytes()});
  layout.literals.push_back({0, 0, zip_.head()});
  return layout;
}

std::vector<LayoutLiteral> TorchTarget::finish(std::span<const std::uint32_t> crcs) {
  std::vector<LayoutLiteral> literals;
  for (auto& piece : zip_.tail(crcs)) literals.push_back({0, piece.offset_bytes, std::move(piece.bytes)});
  return literals;
}

}  // namespace fsdp
