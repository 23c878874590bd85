#include "lib/files/transform/raw_optim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_reader.hpp"
#include "lib/files/formats/pickle_writer.hpp"

namespace fsdp {
namespace {

/// "12.exp_avg" as 12 and "exp_avg"; nothing for other text.
std::optional<std::pair<std::size_t, std::string>> split_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() || end == text.data() + text.size() || *end != '.')
    return std::nullopt;
  return std::pair(number, std::string(end + 1, text.data() + text.size()));
}

/// The part of `name` behind "state." or "param_groups.", wherever the user nested the state dict.
std::optional<std::string_view> behind(std::string_view name, std::string_view container) {
  const auto at = name.starts_with(container) ? 0 : name.find("." + std::string(container));
  if (at == std::string_view::npos) return std::nullopt;
  return name.substr(at + container.size() + (at == 0 ? 0 : 1));
}

/// State tensors of one rank's file by id and name.
using StateTensors = std::map<std::size_t, std::map<std::string, std::size_t>>;

StateTensors state_tensors(const Source& file) {
  StateTensors found;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const auto rest = behind(file.tensors()[i].name, "state.");
    if (const auto part = rest ? split_number(*rest) : std::nullopt) found[part->first][part->second] = i;
  }
  return found;
}

/// What one id of the optimizer stands for: elements of a rank's shards, put in a row, hold `items`.
struct OptimTarget {
  struct Item {
    std::size_t parameter = 0;
    FlatItem place;
  };
  std::string name;  ///< for messages
  std::vector<Item> items;
  std::uint64_t size = 0;    ///< elements in a row, without right padding
  bool equal_shards = true;  ///< a flat parameter: every rank has as many, the last ones padded
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

  /// Ids per group from "param_groups.<n>.params" of the first file.
  void read_groups() {
    const auto& first = file(0);
    for (std::size_t i = 0; i < first.values().size(); ++i) {
      const auto rest = behind(first.values()[i].name, "param_groups.");
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
        group.push_back(static_cast<std::size_t>(*id->integer()));
      }
      num_ids_ += group.size();
    }
    if (num_ids_ == 0) throw FormatError(path(0) + ": there is no param_groups with the ids of the parameters");
  }

  void make_targets() {
    const auto& flat = result_.source(0).tensors();
    if (num_ids_ == units_.units.size() + units_.separate.size()) {
      // FSDP's own flat parameters stand where their module does; parameters it left alone would need their modules'.
      if (!units_.separate.empty()) refuse_ids();
      for (const auto& unit : units_.units) {
        OptimTarget target{flat[unit.tensor].name, {}, unit.layout.size, true};
        for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
          target.items.push_back({unit.parameters[i], unit.layout.items[i]});
        }
        targets_.push_back(std::move(target));
      }
    } else if (num_ids_ == shapes_.parameters.size()) {
      for (std::size_t i = 0; i < shapes_.parameters.size(); ++i) {
        const auto count = static_cast<std::uint64_t>(num_elements(shapes_.parameters[i].shape));
        targets_.push_back({shapes_.parameters[i].name, {{i, {0, count, 0}}}, count, false});
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
        // A step count: one for all parameters of the id.
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
        // Behind the last one lies what makes all shards equally long.
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

  /// Every rank's tensor, whole; a rank without state (an empty view of use_orig_params) has none.
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
      shards.push_back({rank + 1, it->second, 0, static_cast<std::uint64_t>(num_elements(tensor.shape))});
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
      if (from < to) pieces.push_back({shard.source, shard.tensor, from - begin, to - from});
      begin += shard.count;
    }
    return pieces;
  }

  /// A parameter's state before it is known where it is stored.
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
    tensor.num_shards = static_cast<std::int64_t>(pieces.size());
    result_.add_tensor(std::move(tensor), std::move(pieces), std::move(padding), is_alias);
  }

  /// State that is no tensor, such as a step counted in python.
  void add_state_values() {
    for (std::size_t i = 0; i < file(0).values().size(); ++i) {
      const auto rest = behind(file(0).values()[i].name, "state.");
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

}  // namespace

std::vector<std::shared_ptr<const Source>> open_optim_files(const std::vector<std::filesystem::path>& files) {
  std::vector<std::shared_ptr<const Source>> opened;
  for (const auto& file : files) opened.push_back(open_source(file));
  return opened;
}

void add_raw_optim(PieceSource& result, const FlatUnits& units, const ParameterShapes& shapes) {
  RawOptim(result, units, shapes).add();
}

}  // namespace fsdp
