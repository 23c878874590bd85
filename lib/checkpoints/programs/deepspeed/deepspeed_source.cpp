// Source: deepspeed 0.19 deepspeed/utils/zero_to_fp32.py, runtime/zero/stage_1_and_2.py, stage3.py, bf16_optimizer.py,
// checkpoint/ds_to_universal.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <variant>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"
#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {

/// Parameters whose state is stored together: an optimizer's group, with ZeRO-3 a sub-group.
struct ParameterGroup {
  std::vector<std::pair<std::string, Shape>> parameters;
  std::vector<std::uint64_t> gaps;  ///< padding elements after each parameter
};

/// A state of a group that is one number for all its parameters.
struct GroupNumber {
  std::string key;
  std::optional<OwnPlace> tensor;  ///< else a python value
  PickleRef value = nullptr;
};

std::uint64_t rounded_up(std::uint64_t count, std::uint64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

class DeepSpeedSource : public RankFilesSource {
 public:
  explicit DeepSpeedSource(const std::filesystem::path& directory) : files_(list_deepspeed_files(directory)) {
    info_.directory = files_.given;
    const auto model = open_torch_file(files_.model.begin()->second);
    model_name_ = model->file().path().string();
    info_.files.push_back(model->file().path());
    read_names(*model);
    if (files_.is_universal) {
      read_universal(*model);
    } else if (!files_.optimizer.empty()) {
      read_zero();
    } else {
      read_stage_0(*model);
    }
    add_frozen(*model);
    add_aliases();
    add_rest_of_module(*model);
    add_states();
    add_values(*model);
    check_names(model_name_);
  }

 private:
  // Opening.
  void read_names(const TorchFile& model);
  void read_zero();
  void read_partition(const TorchFile& file, std::size_t rank, const PickleNode& state);
  void read_stage_3_partition(const TorchFile& file, std::size_t rank, const PickleNode& state);
  void read_states(const TorchFile& file, std::size_t rank, std::size_t group, const PickleNode& states);
  void check_number(const GroupNumber& number, const PickleNode& node, std::size_t rank, std::size_t group) const;
  void check_partition(std::size_t group) const;
  void place_parameters(const PickleNode& state);
  void place_stage_3_parameters();
  std::vector<std::uint64_t> allowed_sizes(std::size_t group, std::uint64_t needed) const;
  void read_universal(const TorchFile& model);
  void read_universal_parameter(const std::string& name, const std::filesystem::path& folder);
  void read_stage_0(const TorchFile& model);
  std::vector<std::string> distinct_parameters(const TorchFile& model);
  void add_frozen(const TorchFile& model);
  void add_aliases();
  void add_rest_of_module(const TorchFile& model);
  void add_states();
  void add_values(const TorchFile& model);
  void add_group_settings(const std::vector<PickleNode>& groups);

  void add_model(const std::string& name, DType dtype, const Shape& shape, Place place);
  static StatePath state_path(const std::string& name, const std::string& key) { return {"optim", "state", name, key}; }
  void remark(const std::string& text) { info_.remarks.push_back(files_.folder.string() + ": " + text); }

  DeepSpeedFolder files_;
  std::string model_name_;  // the first model file, for messages
  std::size_t world_size_ = 0;
  bool is_stage_3_ = false;
  std::vector<std::vector<std::uint64_t>> group_paddings_;  // by rank and group

  // The contents of the model file.
  std::vector<ParameterGroup> groups_;
  std::map<std::string, PickleNode> module_;
  std::vector<std::string> module_order_;
  std::set<std::string> buffers_;
  std::vector<std::pair<std::string, std::string>> shared_;  // (name, the parameter that holds the data)
  std::map<std::string, std::size_t> tensor_of_;             // parameters: number of "model.<name>"

  // The flat buffers of the optimizer files, keyed by group and state name ("": the fp32 weights).
  std::vector<std::map<std::string, std::size_t>> flat_of_;
  std::vector<std::vector<GroupNumber>> numbers_;  // by group
  struct State {
    StatePath path;
    DType dtype;
    Shape shape;
    Place place;
  };
  std::vector<State> states_;
  std::vector<std::pair<StatePath, PickleRef>> state_values_;
  std::shared_ptr<const PickleDocument> optimizer_;  // of rank 0
  std::string optimizer_name_;
  std::optional<PickleNode> settings_;                  // param_groups, and what else describes the optimizer
  std::vector<std::vector<std::string>> group_params_;  // names by parameter group; stage 3: by sub-group
};

void DeepSpeedSource::add_model(const std::string& name, DType dtype, const Shape& shape, Place place) {
  if (!tensor_of_.emplace(name, tensors_.size()).second)
    throw FormatError(model_name_ + ": the parameter \"" + name + "\" is listed twice");
  add({"model", name}, dtype, shape, std::move(place));
}

/// Reads module, parameter names and shapes from the first model file.
void DeepSpeedSource::read_names(const TorchFile& model) {
  const PickleNode root{model.document()->root, model_name_, ""};
  if (const auto module = root.find("module"); module && !module->value->is_none()) {
    for (auto& [name, node] : module->entries()) {
      module_order_.push_back(name);
      module_.emplace(name, std::move(node));
    }
  }
  if (const auto names = root.find("buffer_names"); names && !names->value->is_none())
    for (const auto& name : names->items()) buffers_.insert(name.text());
  if (const auto shared = root.find("shared_params"))
    if (!shared->value->is_none())
      for (const auto& [name, other] : shared->entries()) shared_.emplace_back(name, other.text());
  const auto shapes = root.find("param_shapes");
  if (!shapes || shapes->value->is_none()) return;
  // Before 0.3.17, there was one dict for all groups.
  const auto dicts = shapes->value->list() != nullptr ? shapes->items() : std::vector<PickleNode>{*shapes};
  for (const auto& dict : dicts) {
    auto& group = groups_.emplace_back();
    for (const auto& [name, size] : dict.entries()) group.parameters.emplace_back(name, size.shape());
    group.gaps.assign(group.parameters.size(), 0);
  }
}

constexpr std::uint64_t kMostRanks = 1u << 20;

std::uint64_t largest_partition_count(const PickleNode& node) {
  if (node.value->integer() != nullptr) return node.count();
  std::uint64_t most = 0;
  for (const auto& count : node.items()) most = std::max(most, count.count());
  return most;
}

void DeepSpeedSource::read_zero() {
  if (groups_.empty())
    throw FormatError(model_name_ +
                      ": has no \"param_shapes\", which name the parameters of the *_optim_states.pt beside it");
  if (!files_.optimizer.contains(0))
    throw FormatError(files_.folder.string() + ": *_optim_states.pt of rank 0 is missing: copy the whole folder");
  std::vector<std::size_t> ranks{0};
  std::optional<PickleNode> first_state;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = ranks[i];
    const auto file = open_torch_file(files_.optimizer.at(rank));
    const auto name = file->file().path().string();
    const PickleNode state = PickleNode{file->document()->root, name, ""}.at("optimizer_state_dict");
    if (rank == 0) {
      const auto partitions = state.at("partition_count");
      const auto world = largest_partition_count(partitions);
      if (world == 0 || world > kMostRanks) partitions.fail("is no number of ranks");
      ranks = ranks_of_save(files_, static_cast<std::size_t>(world), info_.remarks);
      world_size_ = ranks.size();
      info_.world_size = static_cast<int>(world_size_);
      is_stage_3_ = state.find("fp32_flat_groups").has_value();
      optimizer_ = file->document();
      optimizer_name_ = name;
      first_state = state;
      settings_ = state;
    }
    const auto world = largest_partition_count(state.at("partition_count"));
    if (world != world_size_)
      state.at("partition_count")
          .fail(fmt::format("is {}, that of rank 0 is {}: files of two saves lie in one folder", world, world_size_));
    info_.files.push_back(file->file().path());
    if (is_stage_3_) {
      read_stage_3_partition(*file, rank, state);
    } else {
      read_partition(*file, rank, state);
    }
  }
  std::string stage = is_stage_3_ ? "3" : "1";
  if (const auto found = first_state->find("zero_stage")) {
    const auto* object = found->value->object();
    const auto* number = object != nullptr && object->args->tuple()->items.size() == 1
                             ? object->args->tuple()->items[0]->integer()
                             : found->value->integer();
    if (number != nullptr) stage = std::to_string(*number);
  }
  info_.format = "DeepSpeed ZeRO-" + stage;
  if (is_stage_3_) {
    place_stage_3_parameters();
  } else {
    place_parameters(*first_state);
  }
}

/// Adds one rank's part of each group's masters and states.
void DeepSpeedSource::read_partition(const TorchFile& file, std::size_t rank, const PickleNode& state) {
  const auto masters = state.at("single_partition_of_fp32_groups").items();
  if (masters.size() != groups_.size())
    state.at("single_partition_of_fp32_groups")
        .fail(fmt::format("has {} groups, the model file names the parameters of {}", masters.size(), groups_.size()));
  flat_of_.resize(groups_.size());
  numbers_.resize(groups_.size());
  const auto base = state.at("base_optimizer_state");
  const auto in_list = base.value->list() != nullptr;  // elastic checkpoints
  const auto in_dict = in_list ? std::nullopt : std::optional(base.at("state"));
  const auto list = in_list ? base.items() : std::vector<PickleNode>();
  auto& paddings = group_paddings_.emplace_back();
  if (const auto found = state.find("group_paddings"))
    for (const auto& padding : found->items()) paddings.push_back(padding.count());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const auto [flat, is_new] = flat_of_[group].emplace("", flats_.size());
    if (is_new) flats_.push_back({DType::f32, {{}}});
    auto& parts = flats_[flat->second];
    parts.parts[0].push_back(segment_of(file, masters[group], parts.dtype, rank == 0));
    if (in_list && group < list.size()) read_states(file, rank, group, list[group]);
    if (in_list) continue;
    if (const auto states = in_dict->find(std::to_string(group))) read_states(file, rank, group, *states);
  }
}

void DeepSpeedSource::read_stage_3_partition(const TorchFile& file, std::size_t rank, const PickleNode& state) {
  const auto masters = state.at("fp32_flat_groups").items();
  const auto all = state.at("optimizer_state_dict").at("state");
  if (rank == 0) numbers_.resize(masters.size());
  if (masters.size() != numbers_.size())
    state.at("fp32_flat_groups")
        .fail(fmt::format("has {} sub-groups, that of rank 0 has {}", masters.size(), numbers_.size()));
  flat_of_.resize(1);
  const auto [flat, is_new] = flat_of_[0].emplace("", flats_.size());
  if (is_new) flats_.push_back({});
  const auto number = flat->second;
  flats_[number].parts.emplace_back();
  for (std::size_t group = 0; group < masters.size(); ++group) {
    flats_[number].parts[rank].push_back(
        segment_of(file, masters[group], flats_[number].dtype, rank == 0 && group == 0));
    if (const auto states = all.find(std::to_string(group))) read_states(file, rank, group, *states);
  }
}

/// Adds one rank's states of a group: flat tensors, and numbers that are those of all its parameters.
void DeepSpeedSource::read_states(const TorchFile& file, std::size_t rank, std::size_t group,
                                  const PickleNode& states) {
  const auto place = is_stage_3_ ? 0 : group;
  const auto part = is_stage_3_ ? rank : 0;
  std::size_t index = 0;
  for (const auto& [key, node] : states.entries()) {
    const auto view = is_tensor_like(*node.value) ? tensor_view(*node.value, node.file) : std::nullopt;
    if (view && view->sizes.size() == 1 && key != "step") {
      const auto [flat, is_new] = flat_of_[place].emplace(key, flats_.size());
      if (is_new && (rank != 0 || (is_stage_3_ && group != 0)))
        node.fail("is state that rank 0 does not have: files of two saves lie in one folder");
      if (is_new) flats_.push_back({view->dtype, {}});
      auto& parts = flats_[flat->second];
      if (parts.parts.size() <= part) parts.parts.resize(part + 1);
      parts.parts[part].push_back(segment_of(file, node, parts.dtype, is_new));
      continue;
    }
    if (view && num_elements(view->sizes) != 1)
      node.fail("is neither flat nor a number, so it belongs to no parameter");
    GroupNumber number{.key = key, .tensor = std::nullopt, .value = view ? nullptr : node.value};
    if (view) number.tensor = own_place(file, *view);
    if (rank == 0) {
      numbers_[group].push_back(std::move(number));
    } else if (index < numbers_[group].size()) {
      check_number(number, node, rank, group);
    }
    ++index;
  }
}

/// Steps that differ between ranks mean files of two saves.
void DeepSpeedSource::check_number(const GroupNumber& number, const PickleNode& node, std::size_t rank,
                                   std::size_t group) const {
  const auto& known = numbers_[group];
  const auto first = std::ranges::find(known, number.key, &GroupNumber::key);
  if (first == known.end() || !number.tensor || !first->tensor ||
      first->tensor->view.dtype != number.tensor->view.dtype)
    return;
  std::array<std::byte, 16> a{}, b{};
  const auto bytes = dtype_size_bytes(number.tensor->view.dtype);
  read_view(first->tensor->storage, first->tensor->view, 0, 1, std::span(a).first(bytes), nullptr);
  read_view(number.tensor->storage, number.tensor->view, 0, 1, std::span(b).first(bytes), nullptr);
  if (a != b)
    node.fail(fmt::format("of rank {} differs from that of rank 0: files of two saves lie in one folder", rank));
}

/// The sizes that a group's flat may have: without padding, and with that of the ranks' own or DeepSpeed's alignment.
std::vector<std::uint64_t> DeepSpeedSource::allowed_sizes(std::size_t group, std::uint64_t needed) const {
  std::uint64_t padded = needed;
  for (const auto& paddings : group_paddings_)
    if (group < paddings.size()) padded += std::min<std::uint64_t>(paddings[group], 1u << 30);
  return {needed, padded, rounded_up(needed, world_size_), rounded_up(needed, 2 * world_size_)};
}

/// Checks that every rank has the states of the elements whose masters it has: as many, or with its padding.
void DeepSpeedSource::check_partition(std::size_t group) const {
  const auto& masters = flats_[flat_of_[group].at("")].parts[0];
  for (const auto& [key, flat] : flat_of_[group]) {
    const auto& parts = flats_[flat].parts[0];
    for (std::size_t rank = 0; rank < masters.size(); ++rank) {
      const auto& paddings = group_paddings_[rank];
      const bool is_known = group < paddings.size();
      const auto count = rank < parts.size() ? parts[rank].count : 0, own = masters[rank].count;
      if (count == own || (is_known ? count - own == paddings[group] : count > own && rank + 1 == masters.size()))
        continue;
      throw FormatError(
          fmt::format("{}: \"{}\" of parameter group {} has {} elements, its masters have {}: files of two "
                      "saves lie in one folder",
                      files_.optimizer.at(rank).string(), key, group, count, own));
    }
  }
}

void DeepSpeedSource::place_parameters(const PickleNode& state) {
  const auto alignments = state.find("param_alignment_paddings");
  const auto gaps = alignments ? alignments->items() : std::vector<PickleNode>();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    auto& known = groups_[group];
    auto& names = group_params_.emplace_back();
    if (group < gaps.size()) {
      const auto listed = gaps[group].items();
      if (listed.size() > known.parameters.size()) gaps[group].fail("has more entries than parameters");
      for (std::size_t i = 0; i < listed.size(); ++i) known.gaps[i] = listed[i].count();
    }
    std::uint64_t needed = 0;
    for (std::size_t i = 0; i < known.parameters.size(); ++i) {
      if (__builtin_add_overflow(needed, element_count(known.parameters[i].second), &needed) ||
          __builtin_add_overflow(needed, known.gaps[i], &needed))
        throw FormatError(model_name_ + ": parameters have more elements than 64 bits can count");
    }
    check_partition(group);
    const auto allowed = allowed_sizes(group, needed);
    for (const auto& [key, flat] : flat_of_[group]) {
      const auto size = flats_[flat].part_size(0);
      if (std::ranges::find(allowed, size) == allowed.end())
        throw FormatError(fmt::format(
            "{}: {} of parameter group {} {} {} elements on all ranks together, its {} parameters need {} ({} with "
            "padding): the files are of another model or of two saves",
            files_.folder.string(), key.empty() ? "the masters" : "\"" + key + "\"", group,
            key.empty() ? "have" : "has", size, known.parameters.size(), needed, allowed.back()));
      std::uint64_t first = 0;
      for (std::size_t i = 0; i < known.parameters.size(); ++i) {
        const auto& [name, shape] = known.parameters[i];
        const auto count = element_count(shape);
        const auto end = first + count;
        const auto gap = i + 1 < known.parameters.size() ? known.gaps[i] : size - end;
        const PlaceInFlat place{.flat = flat, .first = first, .each = std::max<std::uint64_t>(count, 1), .gap = gap};
        if (key.empty()) {
          add_model(name, flats_[flat].dtype, shape, place);
          names.push_back(name);
        } else {
          states_.push_back({state_path(name, key), flats_[flat].dtype, shape, place});
        }
        first = end + known.gaps[i];
      }
    }
  }
}

void DeepSpeedSource::place_stage_3_parameters() {
  std::uint64_t needed = 0;
  for (const auto& group : groups_)
    for (const auto& [name, shape] : group.parameters)
      if (__builtin_add_overflow(needed, rounded_up(element_count(shape), world_size_) / world_size_, &needed))
        throw FormatError(model_name_ + ": parameters have more elements than 64 bits can count");
  for (const auto& [key, flat] : flat_of_[0]) {
    if (flats_[flat].parts.size() != world_size_)
      throw FormatError(fmt::format("{}: \"{}\" is on some ranks only: files of two saves lie in one folder",
                                    files_.folder.string(), key));
    for (std::size_t rank = 0; rank < world_size_; ++rank)
      if (const auto size = flats_[flat].part_size(rank); size != needed)
        throw FormatError(fmt::format(
            "{}: {} {} {} elements, a rank's part of the parameters in the model file has {}: the files are of another "
            "model or of two saves",
            files_.optimizer.at(rank).string(), key.empty() ? "the masters" : "\"" + key + "\"",
            key.empty() ? "have" : "has", size, needed));
    std::uint64_t first = 0;
    for (const auto& group : groups_)
      for (const auto& [name, shape] : group.parameters) {
        const auto each = rounded_up(element_count(shape), world_size_) / world_size_;
        const PlaceInFlat place{.flat = flat, .first = first, .each = std::max<std::uint64_t>(each, 1), .gap = 0};
        if (key.empty()) {
          add_model(name, flats_[flat].dtype, shape, place);
        } else {
          states_.push_back({state_path(name, key), flats_[flat].dtype, shape, place});
        }
        first += each;
      }
  }
  for (const auto& group : groups_) {
    auto& names = group_params_.emplace_back();
    for (const auto& [name, shape] : group.parameters) names.push_back(name);
  }
}

// --------------------------------------------------------------------------------------------- universal and stage 0

/// Adds the files of one parameter: fp32.pt, and one file per state.
void DeepSpeedSource::read_universal_parameter(const std::string& name, const std::filesystem::path& folder) {
  std::optional<Shape> shape;
  for (const auto& group : groups_)
    for (const auto& [known, sizes] : group.parameters)
      if (known == name) shape = sizes;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  std::ranges::sort(files);
  if (std::ranges::none_of(files, [](const auto& file) { return file.filename() == "fp32.pt"; }))
    throw FormatError(folder.string() + ": has no fp32.pt, which holds the parameter");
  for (const auto& path : files) {
    const auto file = open_torch_file(path);
    info_.files.push_back(path);
    PickleNode node{file->document()->root, path.string(), ""};
    if (pickled_mapping(*node.value) != nullptr) node = node.at("param");
    const auto view = tensor_view(*node.value, node.file);
    if (!view) node.fail("should be a tensor and is " + describe(*node.value));
    const auto key = path.stem().string();
    auto sizes = view->sizes;
    OwnPlace place = own_place(*file, *view);
    // From stage 3, tensors are flat.
    if (key != "step" && shape && sizes != *shape) {
      if (!view->is_contiguous() || num_elements(sizes) != num_elements(*shape))
        node.fail(
            fmt::format("has shape [{}], the model file says [{}]", fmt::join(sizes, ", "), fmt::join(*shape, ", ")));
      sizes = *shape;
      place.view = contiguous_view(view->dtype, sizes);
      place.view.storage_offset = view->storage_offset;
      place.view.storage_bytes = view->storage_bytes;
    }
    if (key == "fp32") {
      add_model(name, view->dtype, sizes, std::move(place));
    } else {
      states_.push_back({state_path(name, key), view->dtype, sizes, std::move(place)});
    }
  }
}

/// Reads the folder of each parameter. Copies of tied parameters, buffers and frozen parameters in 32 bits are passed
/// over where the model file has the original.
void DeepSpeedSource::read_universal(const TorchFile& model) {
  info_.format = "DeepSpeed universal";
  const auto zero = files_.folder / "zero";
  std::set<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(zero))
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  std::vector<std::string> order;
  for (const auto& group : groups_)
    for (const auto& [name, shape] : group.parameters) order.push_back(name);
  for (const auto& name : order) {
    if (!folders.contains(name))
      throw FormatError(zero.string() + ": the folder of the parameter \"" + name + "\" is missing");
    read_universal_parameter(name, zero / name);
    folders.erase(name);
  }
  const PickleNode root{model.document()->root, model_name_, ""};
  const auto frozen = root.find("frozen_param_fragments");
  for (const auto& name : folders) {
    const bool is_tied = std::ranges::any_of(shared_, [&](const auto& tie) { return tie.first == name; });
    if (is_tied || module_.contains(name) || (frozen && frozen->find(name))) continue;
    read_universal_parameter(name, zero / name);
  }
  if (const auto ranks = root.find("dp_world_size"); ranks && ranks->value->integer() != nullptr)
    world_size_ = std::min<std::uint64_t>(ranks->count(), kMostRanks);
  info_.world_size = static_cast<int>(world_size_);
  const auto path = zero / "optimizer_state.pt";
  if (!std::filesystem::exists(path)) return;
  const auto file = open_torch_file(path);
  info_.files.push_back(path);
  optimizer_ = file->document();
  optimizer_name_ = path.string();
  settings_ = PickleNode{optimizer_->root, optimizer_name_, ""};
  for (const auto& group : groups_) {
    auto& names = group_params_.emplace_back();
    for (const auto& [name, shape] : group.parameters) names.push_back(name);
  }
  // From stage 3, steps are beside flat states, one per sub-group.
  const auto inner = settings_->find("optimizer_state_dict");
  const auto steps = inner ? inner->find("state") : std::nullopt;
  if (!steps) return;
  numbers_.resize(groups_.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const auto state = steps->find(std::to_string(group));
    const auto step = state ? state->find("step") : std::nullopt;
    if (!step) continue;
    const auto view = is_tensor_like(*step->value) ? tensor_view(*step->value, step->file) : std::nullopt;
    GroupNumber number{.key = "step", .tensor = std::nullopt, .value = view ? nullptr : step->value};
    if (view && num_elements(view->sizes) != 1) step->fail("is no number");
    if (view) number.tensor = own_place(*file, *view);
    numbers_[group].push_back(std::move(number));
  }
}

/// The parameters in the order of the model, a tied one once; its other names go to `shared_`.
std::vector<std::string> DeepSpeedSource::distinct_parameters(const TorchFile& model) {
  std::vector<std::string> names;
  std::map<std::uint32_t, std::string> holders;
  for (const auto& name : module_order_) {
    const auto view = tensor_view(*module_.at(name).value, model_name_);
    if (!view) module_.at(name).fail("should be a tensor and is " + describe(*module_.at(name).value));
    if (buffers_.contains(name)) continue;
    const auto [holder, is_new] = holders.emplace(add_storage(model, *view), name);
    if (!is_new) shared_.emplace_back(name, holder->second);
    if (is_new) names.push_back(name);
  }
  return names;
}

/// Stage 0: one file with whole tensors. Masters of 16-bit runs and states have numbers instead of names.
void DeepSpeedSource::read_stage_0(const TorchFile& model) {
  info_.format = "DeepSpeed ZeRO-0";
  const PickleNode root{model.document()->root, model_name_, ""};
  const auto optimizer = root.find("optimizer");
  if (!groups_.empty())
    throw FormatError(files_.folder.string() +
                      ": no *_optim_states.pt is there, which hold the float32 masters and the optimizer's state: copy "
                      "the whole folder (each node may have kept its own ranks' files). For the weights that products "
                      "were computed with, give " +
                      model_name_ + " itself");
  if (const auto ranks = root.find("dp_world_size"); ranks && ranks->value->integer() != nullptr)
    info_.world_size = static_cast<int>(std::min<std::uint64_t>(ranks->count(), kMostRanks));
  if (!optimizer || optimizer->value->is_none()) return;
  const auto masters = optimizer->find("fp32_groups");
  const auto inner = masters ? optimizer->at("optimizer_state_dict") : *optimizer;
  const auto names = distinct_parameters(model);
  const auto state = inner.at("state");
  std::vector<NumberedGroup> groups;
  std::vector<std::vector<std::string>> ids;
  const auto settings = inner.at("param_groups").items();
  std::vector<std::vector<PickleNode>> masters_of;  // by group
  for (const auto& group : masters ? masters->items() : std::vector<PickleNode>()) masters_of.push_back(group.items());
  std::map<std::string, PickleNode> state_of;
  for (auto& [id, own] : state.entries()) state_of.insert_or_assign(id, std::move(own));
  for (std::size_t group = 0; group < settings.size(); ++group) {
    auto& shapes = groups.emplace_back(NumberedGroup{{}, names_of_group(settings[group])}).shapes;
    auto& numbers = ids.emplace_back();
    for (const auto& id : settings[group].at("params").items()) {
      numbers.push_back(std::to_string(id.integer()));
      std::optional<PickleNode> like;
      if (masters) {
        if (group >= masters_of.size() || numbers.size() > masters_of[group].size())
          masters->fail("lacks parameters of param_groups");
        like = masters_of[group][numbers.size() - 1];
      } else if (const auto own = state_of.find(numbers.back()); own != state_of.end()) {
        for (const auto& [key, node] : own->second.entries())
          if (key != "step" && is_tensor_like(*node.value)) like = node;
      }
      const auto view = like ? tensor_view(*like->value, like->file) : std::nullopt;
      shapes.push_back(view ? view->sizes : Shape{-1});
    }
  }
  optimizer_ = model.document();
  optimizer_name_ = model_name_;
  std::vector<Shape> shapes_of_model;
  for (const auto& name : names) shapes_of_model.push_back(tensor_view(*module_.at(name).value, model_name_)->sizes);
  const auto order = order_of_numbers(groups, names, shapes_of_model);
  if (!order) {
    remark(
        "stage 0 stores the optimizer's state by number, and neither names nor shapes say which parameter it is: the "
        "state stays below \"optimizer\", and the weights are those that products were computed with");
    add_loose({"optimizer"}, model, *optimizer);
    return;
  }
  settings_ = inner;
  groups_.resize(groups.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (const auto number : (*order)[group])
      groups_[group].parameters.emplace_back(names[number], shapes_of_model[number]);
    auto& of_group = group_params_.emplace_back();
    for (std::size_t i = 0; i < groups_[group].parameters.size(); ++i) {
      const auto& [name, shape] = groups_[group].parameters[i];
      of_group.push_back(name);
      const auto& master = masters ? masters_of[group][i] : module_.at(name);
      const auto view = tensor_view(*master.value, master.file);
      add_model(name, view->dtype, view->sizes, own_place(model, *view));
      const auto own = state_of.find(ids[group][i]);
      if (own == state_of.end()) continue;
      for (const auto& [key, node] : own->second.entries()) {
        const auto held = is_tensor_like(*node.value) ? tensor_view(*node.value, node.file) : std::nullopt;
        if (held) {
          states_.push_back({state_path(name, key), held->dtype, held->sizes, own_place(model, *held)});
        } else {
          state_values_.emplace_back(state_path(name, key), node.value);
        }
      }
    }
  }
}

// --------------------------------------------------------------------------------------------------- everything else

/// Adds frozen parameters: whole with ZeRO-2, in a piece per rank with ZeRO-3.
void DeepSpeedSource::add_frozen(const TorchFile& model) {
  const PickleNode root{model.document()->root, model_name_, ""};
  const auto fragments = root.find("frozen_param_fragments");
  const auto shapes = root.find("frozen_param_shapes");
  if (!fragments || fragments->value->is_none() || !shapes || shapes->value->is_none()) return;
  const auto listed = shapes->entries();
  const bool in_pieces = std::ranges::any_of(listed, [&](const auto& entry) {
    const auto view = tensor_view(*fragments->at(entry.first).value, model_name_);
    return !view || view->sizes != entry.second.shape();
  });
  if (!in_pieces || listed.empty()) {
    for (const auto& [name, node] : listed) {
      const auto view = tensor_view(*fragments->at(name).value, model_name_);
      if (!tensor_of_.contains(name)) add_model(name, view->dtype, view->sizes, own_place(model, *view));
    }
    return;
  }
  if (world_size_ == 0) world_size_ = files_.model.size();  // a universal checkpoint that does not tell
  std::vector<std::size_t> missing;
  const auto first = flats_.size();
  flats_.resize(first + listed.size());
  for (std::size_t rank = 0; rank < world_size_; ++rank) {
    const auto path = files_.model.find(rank);
    if (path == files_.model.end()) {
      missing.push_back(rank);
      continue;
    }
    const auto file = open_torch_file(path->second);
    if (rank != 0) info_.files.push_back(path->second);
    const PickleNode own{file->document()->root, path->second.string(), ""};
    for (std::size_t i = 0; i < listed.size(); ++i) {
      auto& flat = flats_[first + i];
      const auto piece = own.at("frozen_param_fragments").at(listed[i].first);
      flat.parts.push_back({segment_of(*file, piece, flat.dtype, rank == 0)});
      const auto each = rounded_up(element_count(listed[i].second.shape()), world_size_) / world_size_;
      if (const auto size = flat.part_size(flat.parts.size() - 1); size != each)  // ranks before may be missing
        piece.fail(fmt::format("has {} elements, a rank's part of the parameter has {}", size, each));
    }
  }
  if (!missing.empty())
    throw FormatError(
        fmt::format("{}: *_model_states.pt of rank {} {} missing, which have frozen parameters: copy the "
                    "whole folder",
                    files_.folder.string(), rank_list(missing), missing.size() == 1 ? "is" : "are"));
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const auto shape = listed[i].second.shape();
    const auto each = rounded_up(element_count(shape), world_size_) / world_size_;
    if (flats_[first + i].parts.empty()) continue;  // no ranks: an empty world is refused before
    add_model(listed[i].first, flats_[first + i].dtype, shape,
              PlaceInFlat{.flat = first + i, .first = 0, .each = std::max<std::uint64_t>(each, 1), .gap = 0});
  }
}

/// Adds tied parameters under their other names, of which one may name another.
void DeepSpeedSource::add_aliases() {
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (const auto& [name, other] : shared_) {
      const auto holder = tensor_of_.find(other);
      if (tensor_of_.contains(name) || holder == tensor_of_.end()) continue;
      const SourceTensor held = tensors_[holder->second];
      const Place place = places_[holder->second];
      add_model(name, held.dtype, held.shape, place);
      is_new = true;
    }
  }
}

/// Adds what only the module of the model file has: buffers, and parameters that no optimizer has.
void DeepSpeedSource::add_rest_of_module(const TorchFile& model) {
  std::vector<std::string> frozen, lost;
  for (const auto& name : module_order_) {
    if (tensor_of_.contains(name)) continue;
    const auto& node = module_.at(name);
    const auto view = is_tensor_like(*node.value) ? tensor_view(*node.value, node.file) : std::nullopt;
    if (!view) {
      add_value({"model", name}, model.document(), node.value);
      continue;
    }
    const bool is_placeholder = is_stage_3_ && view->sizes == Shape{0};
    if (!buffers_.contains(name) && is_placeholder) lost.push_back(name);
    if (!buffers_.contains(name) && !is_placeholder && !groups_.empty()) frozen.push_back(name);
    if (!is_placeholder) add_model(name, view->dtype, view->sizes, own_place(model, *view));
  }
  constexpr std::size_t most = 5;
  const auto list = [&](std::vector<std::string> names) {
    const auto more = names.size() > most ? fmt::format(" and {} more", names.size() - most) : std::string();
    names.resize(std::min(most, names.size()));
    return fmt::format("{}{}", fmt::join(names, ", "), more);
  };
  if (!frozen.empty())
    remark(fmt::format("in no parameter group (frozen), taken from the module in its own type: {}", list(frozen)));
  if (!lost.empty())
    remark(
        fmt::format("nowhere in this checkpoint (saved with exclude_frozen_parameters), so left out: {}", list(lost)));
}

void DeepSpeedSource::add_states() {
  for (auto& state : states_) add(std::move(state.path), state.dtype, std::move(state.shape), std::move(state.place));
  states_.clear();
  for (auto& [path, value] : state_values_) add_value(std::move(path), optimizer_, value);
  const bool by_group = numbers_.size() == groups_.size();
  for (std::size_t group = 0; group < groups_.size() && !numbers_.empty(); ++group) {
    for (const auto& number : numbers_[by_group ? group : 0]) {
      for (const auto& [name, shape] : groups_[group].parameters) {
        if (number.tensor) {
          add(state_path(name, number.key), number.tensor->view.dtype, number.tensor->view.sizes, *number.tensor);
        } else {
          add_value(state_path(name, number.key), optimizer_, number.value);
        }
      }
    }
  }
}

/// Adds param_groups with the names of their parameters. Some optimizers count steps there.
void DeepSpeedSource::add_group_settings(const std::vector<PickleNode>& groups) {
  std::set<std::string> has_step;
  for (const auto& tensor : tensors_)
    if (tensor.name.ends_with(".step")) has_step.insert(tensor.name);
  for (const auto& value : values_) has_step.insert(value.name);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<std::string> names;
    // `params` are numbers of groups or sub-groups; at stage 0 those of parameters, which follow the groups' order.
    const bool is_stage_0 = optimizer_name_ == model_name_;
    if (is_stage_0 && group < group_params_.size()) names = group_params_[group];
    if (!is_stage_0)
      for (const auto& number : groups[group].at("params").items())
        if (number.count() < group_params_.size())
          names.insert(names.end(), group_params_[number.count()].begin(), group_params_[number.count()].end());
    for (const auto& [key, node] : groups[group].entries()) {
      const StatePath path{"optim", "param_groups", static_cast<std::int64_t>(group), key};
      if (key == "params") {
        add_value(path, nlohmann::json(names));
      } else {
        add_plain_value(path, optimizer_, node);
      }
      if (key != "step") continue;
      for (const auto& name : names)
        if (!has_step.contains(joined(state_path(name, "step"))))
          add_value(state_path(name, "step"), optimizer_, node.value);
    }
  }
}

void DeepSpeedSource::add_values(const TorchFile& model) {
  static constexpr std::array<std::string_view, 7> kUsed{
      "module",        "buffer_names",          "optimizer", "param_shapes", "frozen_param_shapes",
      "shared_params", "frozen_param_fragments"};
  if (settings_) {
    const auto inner = settings_->find("base_optimizer_state") ? settings_->find("base_optimizer_state")
                                                               : settings_->find("optimizer_state_dict");
    auto groups = settings_->find("param_groups");
    if (inner && !groups) groups = inner->find("param_groups");
    if (groups) add_group_settings(groups->items());
    if (const auto scaler = settings_->find("loss_scaler"); scaler && scaler->value->object() != nullptr) {
      const auto* state = scaler->value->object()->state;
      if (state != nullptr && pickled_mapping(*state) != nullptr)
        for (const auto& [key, node] : PickleNode{state, optimizer_name_, "loss_scaler"}.entries())
          if (is_plain_value(*node.value)) add_value({"loss_scaler", key}, optimizer_, node.value);
    }
  }
  const PickleNode root{model.document()->root, model_name_, ""};
  for (const auto& [key, node] : root.entries()) {
    if (std::ranges::find(kUsed, key) != kUsed.end()) continue;
    if (key == "ds_version" && node.value->string() != nullptr) info_.producer = "DeepSpeed " + node.text();
    add_loose({key}, model, node);
  }
}

}  // namespace

std::unique_ptr<Source> open_deepspeed(const std::filesystem::path& directory) {
  return std::make_unique<DeepSpeedSource>(directory);
}

}  // namespace fsdp
