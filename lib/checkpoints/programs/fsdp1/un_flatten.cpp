#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp1/flat_layout.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"

namespace fsdp {
namespace {

/// Splits "12.exp_avg" into 12 and "exp_avg"; returns nothing for other text.
std::optional<std::pair<std::size_t, std::string>> split_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() || end == text.data() + text.size() || *end != '.')
    return std::nullopt;
  return std::pair(number, std::string(end + 1, text.data() + text.size()));
}

/// The part of `name` after "state." or "param_groups.", at any nesting of the state dict.
std::optional<std::string_view> suffix_after(std::string_view name, std::string_view container) {
  const auto at = name.starts_with(container) ? 0 : name.find("." + std::string(container));
  if (at == std::string_view::npos) return std::nullopt;
  return name.substr(at + container.size() + (at == 0 ? 0 : 1));
}

/// State tensors in the file of one rank, by id and name.
using StateTensors = std::map<std::size_t, std::map<std::string, std::size_t>>;

StateTensors state_tensors(const Source& file) {
  StateTensors found;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const auto rest = suffix_after(file.tensors()[i].name, "state.");
    if (const auto part = rest ? split_number(*rest) : std::nullopt) found[part->first][part->second] = i;
  }
  return found;
}

/// The target of one id of the optimizer: the concatenated shards of all ranks hold `items`.
struct OptimTarget {
  struct Item {
    std::size_t parameter = 0;
    FlatItem place;
  };
  std::string name;  ///< for messages
  std::vector<Item> items;
  std::uint64_t size = 0;    ///< elements of the concatenated shards, without the padding at their end
  bool equal_shards = true;  ///< true for a flat parameter, whose shards are equally long, with padding at the end
};

class RawOptim {
 public:
  RawOptim(PieceSource& result, const FlatUnits& units, const ParameterShapes& shapes)
      : result_(result), units_(units), shapes_(shapes), world_size_(result.num_sources() - 1) {
    for (std::size_t rank = 0; rank < world_size_; ++rank) ranks_.push_back(state_tensors(file(rank)));
    read_groups();
    make_targets();
  }

  void add() {
    std::set<std::size_t> ids;
    for (const auto& rank : ranks_) {
      for (const auto& [id, leaves] : rank) ids.insert(id);
    }
    if (ids.empty()) {
      throw FormatError(path(0) +
                        ": no optimizer state (\"state.<id>.<name>\"); was it written by "
                        "torch.save(optimizer.state_dict())?");
    }
    for (const auto id : ids) add_state(id);
    add_state_values();
    add_groups();
  }

 private:
  const Source& file(std::size_t rank) const { return result_.source(rank + 1); }
  std::string path(std::size_t rank) const {
    const auto& files = file(rank).info().files;
    return files.empty() ? fmt::format("optimizer file {}", rank) : files.front().string();
  }

  /// Reads the ids of each group from "param_groups.<n>.params" of the first file.
  void read_groups() {
    const auto& first = file(0);
    for (std::size_t i = 0; i < first.values().size(); ++i) {
      const auto rest = suffix_after(first.values()[i].name, "param_groups.");
      const auto part = rest ? split_number(*rest) : std::nullopt;
      if (!part) continue;
      if (part->second != "params") {
        settings_.push_back({part->first, part->second, i});
        continue;
      }
      const auto loaded = first.value(i);
      const auto* list = loaded.value->list();
      auto& group = groups_[part->first];
      for (const auto* id : list != nullptr ? list->items : std::vector<PickleRef>()) {
        if (id->integer() == nullptr || *id->integer() < 0) {
          throw FormatError(path(0) + ": " + first.values()[i].name + " should be a list of ids");
        }
        group.push_back(to_index(*id->integer()));
      }
      num_ids_ += group.size();
    }
    if (num_ids_ == 0) throw FormatError(path(0) + ": there is no param_groups with the ids of the parameters");
  }

  void make_targets() {
    const auto& flat = result_.source(0).tensors();
    if (num_ids_ == units_.units.size() + units_.separate.size()) {
      // Flat parameters are in the order of their modules. Where parameters outside them belong in this order is
      // unknown.
      if (!units_.separate.empty()) refuse_ids();
      for (const auto& unit : units_.units) {
        OptimTarget target{.name = flat[unit.tensor].name, .items = {}, .size = unit.layout.size, .equal_shards = true};
        for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
          target.items.push_back({unit.parameters[i], unit.layout.items[i]});
        }
        targets_.push_back(std::move(target));
      }
    } else if (num_ids_ == shapes_.parameters.size()) {
      for (std::size_t i = 0; i < shapes_.parameters.size(); ++i) {
        const auto count = element_count(shapes_.parameters[i].shape);
        targets_.push_back({.name = shapes_.parameters[i].name,
                            .items = {{.parameter = i, .place = {.count = count}}},
                            .size = count,
                            .equal_shards = false});
      }
    } else {
      refuse_ids();
    }
  }

  [[noreturn]] void refuse_ids() const {
    throw FormatError(fmt::format(
        "{}: the optimizer has {} parameters, the local state {} flat parameters and the model {} parameters", path(0),
        num_ids_, units_.units.size(), shapes_.parameters.size()));
  }

  const OptimTarget& target(std::size_t id) const {
    if (id >= targets_.size()) {
      throw FormatError(fmt::format("{}: state of parameter {}, but the optimizer has only {}", path(0), id, num_ids_));
    }
    return targets_[id];
  }

  void add_state(std::size_t id) {
    const auto& goal = target(id);
    std::set<std::string> leaves;
    for (const auto& rank : ranks_) {
      if (const auto it = rank.find(id); it != rank.end()) {
        for (const auto& [leaf, number] : it->second) leaves.insert(leaf);
      }
    }
    for (const auto& leaf : leaves) {
      const auto shards = shards_of(id, leaf, goal);
      const auto& stored = file(shards.front().source - 1).tensors()[shards.front().tensor];
      if (stored.shape.empty()) {
        // A step count, which all parameters of the id share.
        bool is_first = true;
        for (const auto& item : goal.items) {
          add_tensor(state_tensor(item.parameter, leaf, stored.dtype, {}), {shards.front()}, {},
                     !std::exchange(is_first, false));
        }
        continue;
      }
      check_sizes(id, leaf, goal, shards);
      for (std::size_t i = 0; i < goal.items.size(); ++i) {
        const auto& [parameter, place] = goal.items[i];
        const auto end = place.offset + place.count;
        // The padding after the last one makes all shards equally long.
        const auto gap = i + 1 < goal.items.size() ? place.gap : elements(shards) - end;
        add_tensor(state_tensor(parameter, leaf, stored.dtype, shapes_.parameters[parameter].shape),
                   cut(shards, place.offset, place.count), cut(shards, end, gap), false);
      }
    }
  }

  static std::uint64_t elements(const std::vector<TensorPiece>& shards) {
    std::uint64_t total = 0;
    for (const auto& shard : shards) total += shard.count;
    return total;
  }

  /// The whole tensors of all ranks. A rank without state (an empty view of use_orig_params) has no tensor.
  std::vector<TensorPiece> shards_of(std::size_t id, const std::string& leaf, const OptimTarget& goal) const {
    std::vector<TensorPiece> shards;
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      const auto state = ranks_[rank].find(id);
      if (state == ranks_[rank].end()) continue;
      const auto it = state->second.find(leaf);
      if (it == state->second.end()) continue;
      const auto& tensor = file(rank).tensors()[it->second];
      const auto& first = shards.empty() ? tensor : file(shards.front().source - 1).tensors()[shards.front().tensor];
      // A single rank has whole parameters.
      const bool is_whole = world_size_ == 1 && !goal.equal_shards &&
                            tensor.shape == shapes_.parameters[goal.items.front().parameter].shape;
      if (tensor.dtype != first.dtype || tensor.shape.size() != first.shape.size() ||
          (tensor.shape.size() > 1 && !is_whole)) {
        throw FormatError(fmt::format("{}: {} is no shard like the other ranks'", path(rank), tensor.name));
      }
      shards.push_back({.source = rank + 1, .tensor = it->second, .count = element_count(tensor.shape)});
    }
    return shards;
  }

  void check_sizes(std::size_t id, const std::string& leaf, const OptimTarget& goal,
                   const std::vector<TensorPiece>& shards) const {
    const auto fail = [&](std::size_t rank, const std::string& what) {
      throw FormatError(fmt::format("{}: state.{}.{} {}; are these the files of all {} ranks, in their order?",
                                    path(rank), id, leaf, what, world_size_));
    };
    if (!goal.equal_shards) {
      const auto total = elements(shards);
      if (total != goal.size) {
        fail(0,
             fmt::format("and its other ranks' have {} elements together, \"{}\" has {}", total, goal.name, goal.size));
      }
      return;
    }
    const auto each = (goal.size + world_size_ - 1) / world_size_;
    if (shards.size() != world_size_) fail(0, fmt::format("is there on {} ranks only", shards.size()));
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      if (shards[rank].count == each) continue;
      fail(rank, fmt::format("has {} elements, where \"{}\" of {} elements leaves {} to each rank", shards[rank].count,
                             goal.name, goal.size, each));
    }
  }

  static std::vector<TensorPiece> cut(const std::vector<TensorPiece>& shards, std::uint64_t first,
                                      std::uint64_t count) {
    std::vector<TensorPiece> pieces;
    std::uint64_t begin = 0;
    for (const auto& shard : shards) {
      const auto from = std::max(first, begin), to = std::min(first + count, begin + shard.count);
      if (from < to)
        pieces.push_back({.source = shard.source, .tensor = shard.tensor, .first = from - begin, .count = to - from});
      begin += shard.count;
    }
    return pieces;
  }

  /// Describes the state of a parameter, without the place where it is stored.
  SourceTensor state_tensor(std::size_t parameter, const std::string& leaf, DType dtype, Shape shape) const {
    const auto& name = shapes_.parameters[parameter].name;
    SourceTensor tensor;
    tensor.name = "optim.state." + name + "." + leaf;
    tensor.path = {"optim", "state", name, leaf};
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.stored_bytes = tensor.size_bytes();
    return tensor;
  }

  void add_tensor(SourceTensor tensor, std::vector<TensorPiece> pieces, std::vector<TensorPiece> padding,
                  bool is_alias) {
    tensor.num_shards = std::ssize(pieces);
    result_.add_tensor(std::move(tensor), std::move(pieces), std::move(padding), is_alias);
  }

  /// Adds state that is no tensor, such as a step that python counts.
  void add_state_values() {
    for (std::size_t i = 0; i < file(0).values().size(); ++i) {
      const auto rest = suffix_after(file(0).values()[i].name, "state.");
      const auto part = rest ? split_number(*rest) : std::nullopt;
      if (!part) continue;
      for (const auto& item : target(part->first).items) {
        const auto& name = shapes_.parameters[item.parameter].name;
        result_.add_value({"optim.state." + name + "." + part->second, {"optim", "state", name, part->second}}, 1, i);
      }
    }
  }

  void add_groups() {
    for (const auto& setting : settings_) add_group_value(setting.group, setting.name, 1, setting.value);
    for (const auto& [group, ids] : groups_) {
      PickleWriter writer;
      auto names = nlohmann::json::array();
      for (const auto id : ids) {
        for (const auto& item : target(id).items) names.push_back(shapes_.parameters[item.parameter].name);
      }
      writer.json(names);
      PickleSource pickle;
      pickle.text = std::make_shared<const std::string>(writer.finish());
      pickle.file = path(0);
      const auto document = std::make_shared<const PickleDocument>(read_pickle(pickle));
      result_.add_value(group_value(group, "params"), LoadedValue{document, document->root});
    }
  }

  static SourceValue group_value(std::size_t group, const std::string& name) {
    return {fmt::format("optim.param_groups.{}.{}", group, name),
            {"optim", "param_groups", static_cast<std::int64_t>(group), name}};
  }
  void add_group_value(std::size_t group, const std::string& name, std::size_t source, std::size_t value) {
    result_.add_value(group_value(group, name), source, value);
  }

  struct Setting {
    std::size_t group = 0;
    std::string name;
    std::size_t value = 0;  ///< number in the first file
  };

  PieceSource& result_;
  const FlatUnits& units_;
  const ParameterShapes& shapes_;
  std::size_t world_size_;
  std::vector<StateTensors> ranks_;
  std::map<std::size_t, std::vector<std::size_t>> groups_;  // ids
  std::vector<Setting> settings_;
  std::size_t num_ids_ = 0;
  std::vector<OptimTarget> targets_;
};

/// Opens the files of the optimizer state that every rank saved with torch.save(optimizer.state_dict()). \throws
/// FormatError, IoError
std::vector<std::shared_ptr<const Source>> open_optim_files(const std::vector<std::filesystem::path>& files) {
  std::vector<std::shared_ptr<const Source>> opened;
  for (const auto& file : files) opened.push_back(open_source(file));
  return opened;
}

/// Adds "optim.state.<fqn>.*" and "optim.param_groups.<n>.*" to `result`, whose sources are the local state and then
/// the files of the ranks. The ids in the files count flat parameters in the order of the modules, or parameters when
/// the optimizer was given the views of use_orig_params. 1-D tensors of matching size are cut up; 0-dim tensors belong
/// to all parameters of an id.
/// \throws FormatError naming file, id and what does not fit
void add_raw_optim(PieceSource& result, const FlatUnits& units, const ParameterShapes& shapes) {
  RawOptim(result, units, shapes).add();
}

using Ties = std::vector<std::pair<std::string, std::string>>;

/// Resolves all ties: the first name of a tie is no parameter, the second name is one.
ParameterShapes resolve_ties(const UnFlattenOptions& options) {
  auto shapes = options.shapes;
  std::unordered_map<std::string, std::string> shared;
  std::vector<std::string> order;
  for (const auto* ties : {&options.shapes.ties, &options.ties}) {
    for (const auto& [name, other] : *ties) {
      if (!shared.contains(name)) order.push_back(name);
      shared[name] = other;  // the ties of the user take precedence
    }
  }
  // A tied parameter has no storage of its own.
  const auto is_tied = [&](const ParameterShapes::Entry& entry) { return shared.contains(entry.name); };
  shapes.parameters.erase(std::remove_if(shapes.parameters.begin(), shapes.parameters.end(), is_tied),
                          shapes.parameters.end());
  std::unordered_set<std::string> names;
  for (const auto& entry : shapes.parameters) {
    if (!names.insert(entry.name).second) throw FormatError(shapes.origin + ": \"" + entry.name + "\" is listed twice");
  }
  shapes.ties.clear();
  for (const auto& name : order) {
    auto target = shared[name];
    for (std::size_t steps = 0; shared.contains(target) && steps < shared.size(); ++steps) target = shared[target];
    if (target.empty()) {
      throw RequestError("\"" + name + "\" is listed without a shape in " + shapes.origin, {Remedy::tie, name});
    }
    if (!names.contains(target)) {
      throw RequestError(
          "tie " + name + "=" + target + ": there is no parameter \"" + target + "\" in " + shapes.origin,
          Remedy::of_tie);
    }
    shapes.ties.emplace_back(name, target);
  }
  return shapes;
}

/// The path of a parameter in the nested dict: the path of the flat parameter of its unit, with the name replaced.
StatePath path_beside(const SourceTensor& flat, const std::string& module, const std::string& full_name) {
  auto path = flat.path;
  auto* last = path.empty() ? nullptr : std::get_if<std::string>(&path.back());
  if (last == nullptr || !flat.name.ends_with(*last)) return {full_name};
  const auto nesting = flat.name.size() - last->size();  // characters of the name that belong to the other elements
  if (nesting > module.size() || full_name.size() <= nesting ||
      full_name.compare(0, nesting, flat.name, 0, nesting) != 0) {
    return {full_name};
  }
  *last = full_name.substr(nesting);
  return path;
}

/// The number of shards that elements [first, first + count) lie in. All shards but the last are equally long.
std::int64_t shards_in(const SourceTensor& flat, std::uint64_t first, std::uint64_t count) {
  const auto size = element_count(flat.shape);
  if (count == 0 || size == 0) return 0;
  const std::uint64_t shards = std::max<std::int64_t>(1, flat.num_shards);
  const auto each = (size + shards - 1) / shards;
  return static_cast<std::int64_t>((first + count - 1) / each - first / each + 1);
}

class UnFlattener {
 public:
  UnFlattener(std::shared_ptr<const Source> source, const UnFlattenOptions& options)
      : source_(std::move(source)), shapes_(resolve_ties(options)) {
    for (std::size_t i = 0; i < source_->tensors().size(); ++i) number_of_.emplace(source_->tensors()[i].name, i);
    std::vector<std::shared_ptr<const Source>> sources{source_};
    for (auto& file : open_optim_files(options.optim_files)) sources.push_back(std::move(file));
    if (is_local_state(*source_)) units_ = find_flat_units(*source_, shapes_);
    result_ = std::make_unique<PieceSource>(std::move(sources));
  }

  std::unique_ptr<Source> run() {
    if (units_.units.empty()) return pass_on();
    add_parameters();
    add_ties();
    add_rest();
    return finish();
  }

 private:
  std::unique_ptr<Source> finish() {
    for (std::size_t i = 0; i < source_->values().size(); ++i) result_->add_value(source_->values()[i], 0, i);
    if (result_->num_sources() > 1) add_raw_optim(*result_, units_, shapes_);
    check_unique_names(*result_);
    return std::move(result_);
  }

  /// Passes on the local state of a single rank, which is a full state dict.
  std::unique_ptr<Source> pass_on() {
    for (std::size_t i = 0; i < source_->tensors().size(); ++i) add_plain(i);
    for (const auto& [name, other] : shapes_.ties) {
      const auto it = number_of_.find(other);
      if (it == number_of_.end() || number_of_.contains(name)) continue;
      add_plain_alias(it->second, name);
    }
    return finish();
  }

  void add_plain(std::size_t number) {
    const auto& tensor = source_->tensors()[number];
    result_->add_tensor(tensor, {{0, number, 0, element_count(tensor.shape)}});
  }

  void add_plain_alias(std::size_t number, const std::string& full_name) {
    auto tensor = source_->tensors()[number];
    tensor.path = path_beside(tensor, tensor.name, full_name);
    tensor.name = full_name;
    const auto count = element_count(tensor.shape);
    result_->add_tensor(std::move(tensor), {{0, number, 0, count}}, {}, true);
  }

  void add_parameter(const FlatUnit& unit, const FlatItem& item, const std::string& full_name, const Shape& shape,
                     bool is_alias) {
    const auto& flat = source_->tensors()[unit.tensor];
    SourceTensor tensor;
    tensor.name = full_name;
    tensor.path = path_beside(flat, unit.module, full_name);
    tensor.dtype = flat.dtype;
    tensor.shape = shape;
    tensor.num_shards = shards_in(flat, item.offset, item.count);
    tensor.stored_bytes = tensor.size_bytes();
    std::vector<TensorPiece> padding;
    if (item.gap > 0) padding.push_back({.tensor = unit.tensor, .first = item.offset + item.count, .count = item.gap});
    result_->add_tensor(std::move(tensor), {{.tensor = unit.tensor, .first = item.offset, .count = item.count}},
                        std::move(padding), is_alias);
  }

  /// Adds the parameters in the order of the model rather than of the units.
  void add_parameters() {
    flat_items_.resize(shapes_.parameters.size(), {nullptr, nullptr});
    for (const auto& unit : units_.units) {
      for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
        flat_items_[unit.parameters[i]] = {&unit, &unit.layout.items[i]};
      }
    }
    for (std::size_t i = 0; i < shapes_.parameters.size(); ++i) {
      const auto [unit, item] = flat_items_[i];
      const auto full_name = units_.prefix + shapes_.parameters[i].name;
      covered_.insert(full_name);
      if (unit != nullptr) {
        add_parameter(*unit, *item, full_name, shapes_.parameters[i].shape, false);
      } else {
        add_plain(number_of_.at(full_name));
      }
    }
  }

  void add_ties() {
    for (const auto& [name, other] : shapes_.ties) {
      const auto is_other = [&, wanted = &other](const auto& entry) { return entry.name == *wanted; };
      const auto it = std::find_if(shapes_.parameters.begin(), shapes_.parameters.end(), is_other);
      const auto [unit, item] = element(flat_items_, it - shapes_.parameters.begin());
      const auto full_name = units_.prefix + name;
      covered_.insert(full_name);
      if (unit != nullptr) {
        add_parameter(*unit, *item, full_name, it->shape, true);
      } else {
        add_plain_alias(number_of_.at(units_.prefix + other), full_name);
      }
    }
  }

  /// Adds buffers and tensors outside the model. With use_orig_params the dict also holds the slice of one rank of
  /// every parameter: slices of parameters without a known shape must not be taken for tensors.
  void add_rest() {
    for (std::size_t i = 0; i < source_->tensors().size(); ++i) {
      const auto& tensor = source_->tensors()[i];
      if (is_flat_key(tensor) || covered_.contains(tensor.name)) continue;
      const auto looks_like_slice = [&] {
        const std::string_view name = tensor.name;
        return tensor.shape.size() == 1 && name.starts_with(units_.prefix) &&
               (name.ends_with(".weight") || name.ends_with(".bias"));
      };
      if (units_.has_slices && looks_like_slice()) {
        throw RequestError("\"" + tensor.name + "\" looks like one rank's slice of a parameter that " + shapes_.origin +
                               " does not list",
                           {Remedy::list_or_tie, tensor.name.substr(units_.prefix.size())});
      }
      add_plain(i);
    }
  }

  std::shared_ptr<const Source> source_;
  ParameterShapes shapes_;
  FlatUnits units_;
  std::unordered_map<std::string, std::size_t> number_of_;
  std::unique_ptr<PieceSource> result_;
  std::vector<std::pair<const FlatUnit*, const FlatItem*>> flat_items_;  // by parameter
  std::unordered_set<std::string> covered_;
};

}  // namespace

std::unique_ptr<Source> un_flatten(std::shared_ptr<const Source> source, const UnFlattenOptions& options) {
  return UnFlattener(std::move(source), options).run();
}

}  // namespace fsdp
