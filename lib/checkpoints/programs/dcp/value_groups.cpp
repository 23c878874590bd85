#include "lib/checkpoints/programs/dcp/value_groups.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "lib/base/types/index.hpp"

namespace fsdp::detail {
namespace {

bool is_position(const StatePath::value_type& part) { return std::holds_alternative<std::int64_t>(part); }

/// Length of the path without the list positions at its end.
std::size_t stem_length(const StatePath& path) {
  const auto end = std::find_if_not(path.rbegin(), path.rend(), is_position);
  return static_cast<std::size_t>(path.rend() - end);
}

StatePath prefix(const StatePath& path, std::size_t length) { return {path.begin(), iterator_at(path, length)}; }

/// Lists that PyTorch opens because they hold a tensor or a dict at any depth.
std::set<StatePath> opened_lists(const Source& source) {
  std::set<StatePath> opened;
  const auto open = [&](const StatePath& path, std::size_t end) {
    for (std::size_t i = 0; i < end; ++i) {
      if (is_position(path[i])) opened.insert(prefix(path, i));
    }
  };
  for (const auto& tensor : source.tensors()) open(tensor.path, tensor.path.size());
  for (const auto& value : source.values()) open(value.path, stem_length(value.path));
  return opened;
}

using Item = std::map<std::vector<std::int64_t>, std::size_t>::const_iterator;

/// Walks the list whose leaves are [begin, end), which agree in their first `depth` positions: calls begin_list, leaf
/// and end_list of the visitor. Returns false when a position is missing, or when a position has both a leaf and a
/// list.
template <typename Visitor>
bool walk(Item begin, Item end, std::size_t depth, Visitor&& visit) {
  std::int64_t expected = 0;
  visit.begin_list();
  for (auto at = begin; at != end; ++expected) {
    if (at->first.size() <= depth || at->first[depth] != expected) return false;
    const auto next = std::find_if(
        at, end, [&](const auto& item) { return item.first.size() <= depth || item.first[depth] != expected; });
    if (at->first.size() == depth + 1) {
      if (std::next(at) != next) return false;
      visit.leaf(at->second);
    } else if (!walk(at, next, depth + 1, visit)) {
      return false;
    }
    at = next;
  }
  visit.end_list();
  return true;
}

struct Checker {
  void begin_list() {}
  void end_list() {}
  void leaf(std::size_t) {}
};

struct Emitter {
  PickleWriter& pickle;
  const Source& source;
  void begin_list() {
    pickle.empty_list();
    pickle.mark();
  }
  void end_list() { pickle.append_items(); }
  void leaf(std::size_t number) {
    const auto loaded = source.value(number);
    emit_pickle_value(pickle, *loaded.value, PickleStyle::faithful, source.values()[number].name);
  }
};

/// The list that the value belongs to. The group is the value alone when it is in no list, or when its name does not
/// end in the positions of its path.
ValueGroup group_of(const SourceValue& value, std::size_t number, const std::set<StatePath>& opened) {
  ValueGroup group{value.name, value.path, {{{}, number}}};
  for (auto length = std::max<std::size_t>(stem_length(value.path), 1); length < value.path.size(); ++length) {
    if (opened.contains(prefix(value.path, length))) continue;
    std::string suffix;
    std::vector<std::int64_t> positions;
    for (std::size_t i = length; i < value.path.size(); ++i) {
      positions.push_back(std::get<std::int64_t>(value.path[i]));
      suffix += "." + std::to_string(positions.back());
    }
    if (!value.name.ends_with(suffix)) return group;
    return {value.name.substr(0, value.name.size() - suffix.size()), prefix(value.path, length), {{positions, number}}};
  }
  return group;
}

}  // namespace

std::vector<ValueGroup> group_values(const Source& source) {
  const auto opened = opened_lists(source);
  std::vector<ValueGroup> groups;
  std::map<std::string, std::size_t> list_by_name;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    auto group = group_of(source.values()[i], i, opened);
    const bool alone = group.values.begin()->first.empty();
    const auto [found, is_new] = list_by_name.emplace((alone ? "v" : "l") + group.name, groups.size());
    if (is_new) {
      groups.push_back(std::move(group));
    } else {
      groups[found->second].values.merge(group.values);
    }
  }
  std::vector<ValueGroup> result;
  for (auto& group : groups) {
    const bool alone = group.values.begin()->first.empty();
    if (alone || walk(group.values.cbegin(), group.values.cend(), 0, Checker())) {
      result.push_back(std::move(group));
      continue;
    }
    for (const auto& [positions, number] : group.values) {
      result.push_back({source.values()[number].name, source.values()[number].path, {{{}, number}}});
    }
  }
  return result;
}

void emit_group(PickleWriter& pickle, const Source& source, const ValueGroup& group) {
  Emitter emitter{pickle, source};
  if (group.values.begin()->first.empty()) return emitter.leaf(group.values.begin()->second);
  walk(group.values.cbegin(), group.values.cend(), 0, emitter);
}

}  // namespace fsdp::detail
