#include "lib/checkpoints/programs/per_rank/per_rank_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"

namespace fsdp {
namespace {

using FilesByRank = std::map<std::size_t, std::filesystem::path>;

/// The files of one save.
struct RankFolder {
  FilesByRank model, optimizer, extra;
  std::size_t world = 0;
  std::vector<std::string> remarks;
};

/// Files by their number of ranks; 0 where the name does not have the number.
using SavesByWorld = std::map<std::size_t, RankFolder>;

std::size_t small_number(const std::string& digits) { return static_cast<std::size_t>(std::stoul(digits)); }

SavesByWorld list_saves(const std::filesystem::path& directory) {
  static const std::regex kNamed("(model|optim|extra_state)_world_size_([0-9]{1,6})_rank_([0-9]{1,6})\\.pt");
  static const std::regex kAccelerate("(pytorch_model_fsdp|optimizer)_0_rank([0-9]{1,6})\\.bin");
  SavesByWorld saves;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    std::smatch match;
    if (std::regex_match(name, match, kNamed)) {
      auto& save = saves[small_number(match[2])];
      auto& files = match[1] == "model" ? save.model : match[1] == "optim" ? save.optimizer : save.extra;
      files.emplace(small_number(match[3]), entry->path());
    } else if (std::regex_match(name, match, kAccelerate)) {
      auto& save = saves[0];
      (match[1] == "optimizer" ? save.optimizer : save.model).emplace(small_number(match[2]), entry->path());
    }
  }
  std::erase_if(saves, [](const auto& save) { return save.second.model.empty(); });
  for (auto& [world, save] : saves) save.world = world != 0 ? world : save.model.rbegin()->first + 1;
  return saves;
}

std::vector<std::size_t> missing_ranks(const FilesByRank& files, std::size_t world) {
  std::vector<std::size_t> missing;
  constexpr std::size_t most = 10;
  for (std::size_t rank = 0; rank < world && missing.size() < most; ++rank)
    if (!files.contains(rank)) missing.push_back(rank);
  return missing;
}

/// The number of ranks that fsdp_config.json names; 0 without one.
std::size_t world_of_config(const std::filesystem::path& directory) {
  const auto file = directory / "fsdp_config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return 0;
  const auto text = read_text_file(file, 1u << 20);
  const auto config = parse_json_or_discard(text, file.string());
  const auto world = config.is_object() ? config.value("world_size", nlohmann::json()) : nlohmann::json();
  return world.is_number_unsigned() ? world.get<std::size_t>() : 0;
}

/// Chooses among saves of several numbers of ranks: the one that fsdp_config.json names, else the only whole one.
RankFolder choose_save(const std::filesystem::path& directory) {
  auto saves = list_saves(directory);
  if (saves.empty()) throw FormatError(directory.string() + ": has no model_world_size_W_rank_R.pt");
  auto chosen = saves.begin();
  if (saves.size() > 1) {
    const auto named = saves.find(world_of_config(directory));
    std::vector<std::size_t> worlds, whole;
    for (const auto& [world, save] : saves) {
      worlds.push_back(save.world);
      if (missing_ranks(save.model, save.world).empty()) whole.push_back(world);
    }
    if (named == saves.end() && whole.size() != 1)
      throw FormatError(
          fmt::format("{}: has files of saves of {} ranks, and nothing says which is meant: move the files "
                      "of the others away",
                      directory.string(), fmt::join(worlds, " and of ")));
    chosen = named != saves.end() ? named : saves.find(whole.front());
    chosen->second.remarks.push_back(fmt::format("{}: has files of saves of {} ranks; those of {} ranks are read",
                                                 directory.string(), fmt::join(worlds, " and of "),
                                                 chosen->second.world));
  }
  auto& save = chosen->second;
  for (const auto& [files, what] : {std::pair(&save.model, "model"), std::pair(&save.optimizer, "optimizer")}) {
    const auto missing = missing_ranks(*files, save.world);
    if (files->empty() || (missing.empty() && files->size() == save.world)) continue;
    throw FormatError(fmt::format(
        "{}: {} ranks wrote this checkpoint, and the {} files of rank {} are {}: copy the whole folder (each node may "
        "have kept its own ranks' files)",
        directory.string(), save.world, what, fmt::join(missing, ", "), missing.empty() ? "too many" : "missing"));
  }
  return std::move(save);
}

/// The beginning of a name up to its first number: "model.layers.0."; empty without a number. No std::regex, which
/// recurses for every character: a file may name a parameter by a megabyte.
std::string block_of(const std::string& name) {
  for (auto dot = name.find('.'); dot != name.npos;) {
    const auto end = name.find_first_not_of("0123456789", dot + 1);
    if (end != name.npos && end > dot + 1 && name[end] == '.') return name.substr(0, end + 1);
    dot = name.find('.', dot + 1);
  }
  return {};
}

/// A state of the optimizer: a tensor or a python value of rank 0.
struct RankState {
  std::string key;
  RankTensor tensor;
  PickleRef value = nullptr;  ///< of rank 0; null: a tensor
};

class PerRankSource : public RankFilesSource {
 public:
  explicit PerRankSource(const std::filesystem::path& directory) : folder_(directory.string()) {
    save_ = choose_save(directory);
    info_.format = "files per rank";
    info_.producer = "PyTorch";
    info_.remarks = save_.remarks;
    info_.world_size = static_cast<int>(save_.world);
    std::error_code error;
    const auto beside = directory / "huggingface";  // config.json and tokenizer
    info_.directory = std::filesystem::is_regular_file(beside / "config.json", error) ? beside : directory;
    for (const auto& [rank, path] : save_.model) read_model(rank, path);
    for (const auto& [rank, path] : save_.optimizer) read_optimizer(rank, path);
    for (const auto& name : model_order_) add_whole({"model", name}, model_.at(name));
    add_optimizer();
    add_extra();
    if (!differing_.empty())
      remark(fmt::format("differ between ranks, so those of rank 0 are taken: {}", fmt::join(differing_, ", ")));
    check_names(folder_);
  }

 private:
  void remark(const std::string& text) { info_.remarks.push_back(folder_ + ": " + text); }

  void read_model(std::size_t rank, const std::filesystem::path& path) {
    const auto file = open_torch_file(path);
    info_.files.push_back(path);
    const PickleNode root{file->document()->root, path.string(), ""};
    read_tensors(*file, rank, root, "");
    if (rank == 0) model_document_ = file->document();
  }

  /// Adds the tensors below a dict under their joined names.
  void read_tensors(const TorchFile& file, std::size_t rank, const PickleNode& node, const std::string& prefix) {
    for (const auto& [key, item] : node.entries()) {
      const auto name = prefix + key;
      if (is_tensor_like(*item.value)) {
        const auto [known, is_new] = model_.try_emplace(name);
        if (is_new) count_name(name);
        if (is_new) model_order_.push_back(name);
        take(file, rank, item, known->second, name, true);
      } else if (item.is_open_dict()) {
        read_tensors(file, rank, item, name + ".");
      } else if (rank == 0) {
        add_value({"model", name}, file.document(), item.value);
      }
    }
  }

  void read_optimizer(std::size_t rank, const std::filesystem::path& path) {
    const auto file = open_torch_file(path);
    info_.files.push_back(path);
    const PickleNode root{file->document()->root, path.string(), ""};
    for (const auto& [id, node] : root.at("state").entries()) {
      auto& states = optimizer_[id];
      for (const auto& [key, item] : node.entries()) {
        auto known = std::ranges::find(states, key, &RankState::key);
        if (known == states.end()) known = states.insert(states.end(), RankState{.key = key, .tensor = {}});
        if (is_tensor_like(*item.value)) {
          take(*file, rank, item, known->tensor, id + "." + key, false);
        } else if (rank == 0) {
          known->value = item.value;
        }
      }
    }
    if (rank != 0) return;
    optimizer_document_ = file->document();
    groups_ = PickleNode{optimizer_document_->root, path.string(), ""}.at("param_groups").items();
  }

  /// The model's tensors that an optimizer can have, a tied one once: without buffers where these can be told.
  std::vector<std::string> candidates() const {
    const bool any_distributed = std::ranges::any_of(model_, [](const auto& entry) { return !entry.second.is_plain; });
    std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
    std::vector<std::string> names;
    for (const auto& name : model_order_) {
      const auto& tensor = model_.at(name);
      if (any_distributed && tensor.is_plain) continue;
      const bool is_tied =
          !tensor.places.empty() &&
          !seen.emplace(tensor.places.front().storage, tensor.places.front().view.storage_offset).second;
      if (!is_tied) names.push_back(name);
    }
    return names;
  }

  /// The parameter group of each number.
  std::vector<std::vector<std::string>> ids_by_group() const {
    std::vector<std::vector<std::string>> ids;
    for (const auto& group : groups_) {
      auto& own = ids.emplace_back();
      for (const auto& id : group.at("params").items())
        own.push_back(id.value->string() != nullptr ? id.text() : std::to_string(id.integer()));
    }
    return ids;
  }

  void add_optimizer() {
    if (save_.optimizer.empty()) return;
    const auto ids = ids_by_group();
    const auto names = candidates();
    std::vector<std::vector<std::string>> names_by_group;
    const bool by_name =
        std::ranges::any_of(optimizer_, [&](const auto& entry) { return model_.contains(entry.first); });
    if (by_name) {
      for (const auto& [name, states] : optimizer_) add_states(name, states);
      names_by_group = ids;
    } else if (const auto order = order_of_numbers(numbered_groups(ids), names, shapes_of(names))) {
      for (std::size_t group = 0; group < ids.size(); ++group) {
        auto& own = names_by_group.emplace_back();
        for (std::size_t i = 0; i < ids[group].size(); ++i) {
          own.push_back(names[(*order)[group][i]]);
          if (const auto states = optimizer_.find(ids[group][i]); states != optimizer_.end())
            add_states(own.back(), states->second);
        }
      }
    } else if (!add_flat_units(ids, names, names_by_group)) {
      remark(
          "the optimizer's state is left out: it has numbers for names, and neither shapes nor sizes of flat units say "
          "which parameter each number is");
      return;
    }
    add_group_settings(names_by_group);
  }

  std::vector<Shape> shapes_of(const std::vector<std::string>& names) const {
    std::vector<Shape> shapes;
    for (const auto& name : names) shapes.push_back(model_.at(name).shape);
    return shapes;
  }

  std::vector<NumberedGroup> numbered_groups(const std::vector<std::vector<std::string>>& ids) const {
    std::vector<NumberedGroup> groups;
    for (std::size_t group = 0; group < ids.size(); ++group) {
      auto& own = groups.emplace_back(NumberedGroup{{}, names_of_group(groups_[group])}).shapes;
      for (const auto& id : ids[group]) {
        own.push_back({-1});
        const auto states = optimizer_.find(id);
        if (states == optimizer_.end()) continue;
        for (const auto& state : states->second)
          if (state.value == nullptr && state.key != "step" && (!state.tensor.is_plain || save_.world == 1))
            own.back() = state.tensor.shape;
      }
    }
    return groups;
  }

  void add_states(const std::string& name, const std::vector<RankState>& states) {
    for (const auto& state : states) {
      StatePath path{"optim", "state", name, state.key};
      if (state.value != nullptr) {
        add_value(std::move(path), optimizer_document_, state.value);
      } else {
        add_whole(std::move(path), state.tensor);
      }
    }
  }

  /// Parameters by FSDP1 unit: those outside of all blocks, then block by block.
  std::vector<std::vector<std::string>> units_of(const std::vector<std::string>& names) const {
    std::vector<std::vector<std::string>> units(1);
    std::map<std::string, std::size_t> blocks;
    for (const auto& name : names) {
      const auto block = block_of(name);
      if (block.empty()) {
        units[0].push_back(name);
        continue;
      }
      const auto [unit, is_new] = blocks.emplace(block, units.size());
      if (is_new) units.emplace_back();
      units[unit->second].push_back(name);
    }
    return units;
  }

  /// FSDP1: each number is a flat parameter, of which every shard rank holds an equal piece, padded at the end.
  bool add_flat_units(const std::vector<std::vector<std::string>>& ids, const std::vector<std::string>& names,
                      std::vector<std::vector<std::string>>& names_by_group) {
    std::size_t num_ids = 0;
    for (const auto& group : ids) num_ids += group.size();
    auto units = units_of(names);
    if (num_ids == 1) units = {names};
    if (units.size() != num_ids) return false;
    std::size_t ranks = 1;
    for (const auto& name : names) ranks = std::max(ranks, model_.at(name).blocks.size());
    std::size_t unit = 0;
    for (const auto& group : ids)
      for (const auto& id : group)
        if (!flat_unit_fits(id, units[unit++], ranks)) return false;
    unit = 0;
    for (const auto& group : ids) {
      auto& own = names_by_group.emplace_back();
      for (const auto& id : group) {
        add_flat_unit(optimizer_.at(id), units[unit], ranks);
        own.insert(own.end(), units[unit].begin(), units[unit].end());
        ++unit;
      }
    }
    return true;
  }

  std::uint64_t elements_of(const std::vector<std::string>& names) const {
    std::uint64_t count = 0;
    for (const auto& name : names)
      if (__builtin_add_overflow(count, element_count(model_.at(name).shape), &count))
        throw FormatError(folder_ + ": parameters have more elements than 64 bits can count");
    return count;
  }

  bool flat_unit_fits(const std::string& id, const std::vector<std::string>& names, std::size_t ranks) const {
    const auto states = optimizer_.find(id);
    if (states == optimizer_.end()) return false;
    const auto whole = elements_of(names);
    const auto each = whole / ranks + (whole % ranks != 0 ? 1 : 0);
    return std::ranges::all_of(states->second, [&](const RankState& state) {
      if (state.value != nullptr || state.tensor.shape.empty()) return true;
      if (!state.tensor.is_plain || state.tensor.shape.size() != 1 || state.tensor.places.size() < ranks) return false;
      return std::all_of(
          state.tensor.places.begin(), iterator_at(state.tensor.places, ranks),
          [&](const OwnPlace& place) { return element_count(place.view.sizes) == each && place.view.is_contiguous(); });
    });
  }

  void add_flat_unit(const std::vector<RankState>& states, const std::vector<std::string>& names, std::size_t ranks) {
    for (const auto& state : states) {
      if (state.value != nullptr || state.tensor.shape.empty()) {
        for (const auto& name : names) add_states(name, {state});
        continue;
      }
      const auto flat = flats_.size();
      flats_.push_back({state.tensor.dtype, {{}}});
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto& place = state.tensor.places[rank];
        flats_.back().parts[0].push_back(
            {place.storage, place.view.storage_offset, element_count(place.view.sizes), 0});
      }
      const auto size = flats_.back().part_size(0);
      std::uint64_t first = 0;
      for (const auto& name : names) {
        const auto& shape = model_.at(name).shape;
        const auto count = element_count(shape);
        const auto gap = name == names.back() ? size - first - count : 0;
        add({"optim", "state", name, state.key}, state.tensor.dtype, shape,
            PlaceInFlat{.flat = flat, .first = first, .each = std::max<std::uint64_t>(count, 1), .gap = gap});
        first += count;
      }
    }
  }

  void add_group_settings(const std::vector<std::vector<std::string>>& names_by_group) {
    for (std::size_t group = 0; group < groups_.size(); ++group)
      for (const auto& [key, node] : groups_[group].entries()) {
        const StatePath path{"optim", "param_groups", static_cast<std::int64_t>(group), key};
        if (key == "params") {
          add_value(path, nlohmann::json(names_by_group[group]));
        } else {
          add_plain_value(path, optimizer_document_, node);
        }
      }
  }

  /// Adds what rank 0 saved beside model and optimizer.
  void add_extra() {
    const auto first = save_.extra.find(0);
    if (first == save_.extra.end()) return;
    const auto file = open_torch_file(first->second);
    info_.files.push_back(first->second);
    for (const auto& [key, node] : PickleNode{file->document()->root, first->second.string(), ""}.entries())
      add_loose({key}, *file, node);
    if (save_.world > 1) remark("of the ranks' extra state (random numbers), that of rank 0 is taken");
  }

  std::string folder_;
  RankFolder save_;
  std::map<std::string, RankTensor> model_;
  std::vector<std::string> model_order_;
  std::map<std::string, std::vector<RankState>> optimizer_;  // by number or name
  std::vector<PickleNode> groups_;
  std::shared_ptr<const PickleDocument> model_document_, optimizer_document_;
};

}  // namespace

bool is_per_rank_folder(const std::filesystem::path& directory) { return !list_saves(directory).empty(); }

std::unique_ptr<Source> open_per_rank(const std::filesystem::path& directory) {
  return std::make_unique<PerRankSource>(directory);
}

}  // namespace fsdp
