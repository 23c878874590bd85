#include "lib/checkpoints/programs/trainers/trainer_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp_source.hpp"
#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/safetensors_source.hpp"
#include "lib/checkpoints/programs/torch_save/torch_source.hpp"
#include "lib/checkpoints/source/chunked_source.hpp"
#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"
#include "lib/formats/torch_file.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMostTrainerState_bytes = 256u << 20, kLongestLink_bytes = 4096;

/// Entries below `from` get their names below `to`.
struct Move {
  StatePath from, to;
};

/// Everything gets its name below `name`.
std::vector<Move> all_below(const std::string& name) { return {Move{.from = {}, .to = {name}}}; }

/// `path` with its first elements exchanged; nothing when the path does not lie below `move.from`.
std::optional<StatePath> moved(const StatePath& path, const Move& move) {
  const auto count = std::ssize(move.from);
  StatePath result = move.to;
  if (path.size() > move.from.size() && std::equal(move.from.begin(), move.from.end(), path.begin())) {
    result.insert(result.end(), path.begin() + count, path.end());
    return result;
  }
  // Without planner_data, a name is one element.
  const auto* name = path.size() == 1 && !move.from.empty() ? std::get_if<std::string>(&path[0]) : nullptr;
  if (name == nullptr) return std::nullopt;
  const auto prefix = joined(move.from) + ".";
  if (name->size() <= prefix.size() || !name->starts_with(prefix)) return std::nullopt;
  result.emplace_back(name->substr(prefix.size()));
  return result;
}

bool is_below(const StatePath& path, const StatePath& place) {
  return moved(path, Move{.from = place, .to = {}}).has_value();
}

bool has_below(const Source& source, const StatePath& place) {
  const auto is_there = [&](const auto& entry) { return is_below(entry.path, place); };
  return std::ranges::any_of(source.tensors(), is_there) || std::ranges::any_of(source.values(), is_there);
}

bool has_entry(const Source& source, std::string_view name) {
  const auto is_it = [&](const auto& entry) { return entry.name == name; };
  return std::ranges::any_of(source.tensors(), is_it) || std::ranges::any_of(source.values(), is_it);
}

/// The text of a dict's key; empty for a position in a list.
std::string text_of(const StatePath::value_type& element) {
  const auto* text = std::get_if<std::string>(&element);
  return text != nullptr ? *text : std::string();
}

bool is_decimal(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Names and shapes of a model's parameters in the order in which an optimizer numbers them.
using ParameterOrder = std::vector<std::pair<std::string, Shape>>;

/// The order that config.json of a known family gives; empty for any other model.
ParameterOrder order_of_config(const Source& model) {
  const auto& directory = model.info().directory;
  std::error_code error;
  if (!std::filesystem::is_regular_file(directory / "config.json", error)) return {};
  std::map<std::string_view, const SourceTensor*> tensors;
  for (const auto& tensor : model.tensors()) tensors.emplace(tensor.name, &tensor);
  try {
    const auto config = read_model_config(directory);
    if (config.num_layers > std::ssize(model.tensors())) return {};
    ParameterOrder order;
    for (const auto& parameter : parameter_table(config)) {
      auto found = tensors.find(parameter.name);
      if (found == tensors.end()) found = tensors.find(tied_name_of(config, parameter.name));
      if (found == tensors.end()) return {};
      order.emplace_back(parameter.name, found->second->shape);
    }
    return order;
  } catch (const Error&) {  // of a model that is not known here
    return {};
  }
}

/// The order of a state dict: parameters come in the order of the modules. Buffers of integers and other names of tied
/// parameters are no parameters.
ParameterOrder order_of_state_dict(const TorchSource& model, const StatePath& place) {
  ParameterOrder order;
  std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const auto& tensor = model.tensors()[i];
    const auto name = moved(tensor.path, Move{.from = place, .to = {}});
    if (!name || !is_float(tensor.dtype)) continue;
    if (seen.emplace(model.storage_number(i), model.view(i).storage_offset).second)
      order.emplace_back(joined(*name), tensor.shape);
  }
  return order;
}

class TrainerSource final : public Source {
 public:
  explicit TrainerSource(std::string trainer) { info_.trainer = std::move(trainer); }

  /// The first part is the model: format, producer and directory are its own.
  /// \param checks_values  leaves out values of numpy and datetime. This reads them: DCP keeps each in an archive
  const Source& add_part(std::unique_ptr<Source> part, const std::vector<Move>& moves, bool checks_values) {
    const auto number = parts_.size();
    const auto& added = *parts_.emplace_back(std::move(part));
    take_info(added.info());
    const auto new_path = [&](const StatePath& path) {
      for (const auto& move : moves)
        if (auto found = moved(path, move)) return std::move(*found);
      return path;
    };
    for (std::size_t i = 0; i < added.tensors().size(); ++i) {
      auto tensor = added.tensors()[i];
      tensor.path = new_path(tensor.path);
      tensor.name = joined(tensor.path);
      tensors_.push_back(std::move(tensor));
      tensor_origins_.push_back({number, i});
    }
    for (std::size_t i = 0; i < added.values().size(); ++i) {
      const auto path = new_path(added.values()[i].path);
      if (checks_values && !is_kept(added, i, joined(path))) continue;
      values_.push_back({joined(path), path});
      value_origins_.push_back({number, i});
    }
    return added;
  }

  void add_json(const StatePath& path, const nlohmann::json& json) {
    values_.push_back({joined(path), path});
    value_origins_.push_back({kMadeHere, own_values_.size()});
    own_values_.push_back(document_of_json(json, joined(path)));
  }

  /// Gives the optimizer's numbers the names of parameters, or leaves a remark.
  void name_numbers(ParameterOrder order);

  /// To be called once, after the last part. \throws FormatError when two entries have one name
  void finish() {
    if (!left_out_.empty()) {
      constexpr std::size_t most = 5;
      const auto more = left_out_.size() > most ? fmt::format(" and {} more", left_out_.size() - most) : std::string();
      left_out_.resize(std::min(most, left_out_.size()));
      remark(fmt::format("left out, since nothing is imported or called: {}{}", fmt::join(left_out_, ", "), more));
    }
    info_.format += " of " + info_.trainer;
    std::unordered_set<std::string_view> names;
    const auto check = [&](const auto& entry) {
      if (!names.insert(entry.name).second)
        throw FormatError(info_.directory.string() + ": two entries get the name \"" + entry.name.substr(0, 200) +
                          "\"");
    };
    std::ranges::for_each(tensors_, check);
    std::ranges::for_each(values_, check);
  }

  void set_world_size(std::size_t ranks) { info_.world_size = std::max(info_.world_size, static_cast<int>(ranks)); }
  void set_directory(const std::filesystem::path& directory) { info_.directory = directory; }
  void remark(const std::string& text) {
    const bool is_file = parts_.size() == 1 && info_.files.size() == 1;
    info_.remarks.push_back((is_file ? info_.files.front() : info_.directory).string() + ": " + text);
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto [part, number] = tensor_origins_.at(tensor);
    if (sums == nullptr) return parts_[part]->read(number, first, count, out, nullptr);
    std::vector<ReadSum> own;
    const auto crc = parts_[part]->read(number, first, count, out, &own);
    for (auto& sum : own) sums->push_back(with_part(sum, part));
    return crc;
  }
  bool prefers_whole(std::size_t tensor) const override {
    const auto [part, number] = tensor_origins_.at(tensor);
    return parts_[part]->prefers_whole(number);
  }
  LoadedValue value(std::size_t value) const override {
    const auto [part, number] = value_origins_.at(value);
    if (part == kMadeHere) return {own_values_[number], own_values_[number]->root};
    return parts_[part]->value(number);
  }
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override {
    std::vector<std::vector<ReadSum>> of_part(parts_.size());
    for (auto& sum : sums) {
      const auto part = sum.storage / kStoragesOfPart;
      sum.storage %= kStoragesOfPart;
      of_part.at(part).push_back(sum);
    }
    std::vector<ReadSum> rest;
    for (std::size_t part = 0; part < parts_.size(); ++part)
      for (auto& sum : parts_[part]->verify_sums(std::move(of_part[part]))) rest.push_back(with_part(sum, part));
    return rest;
  }

 private:
  static constexpr std::size_t kMadeHere = static_cast<std::size_t>(-1);
  static constexpr std::uint32_t kStoragesOfPart = 1u << 28;  ///< numbers of storages; there are fewer than 16 parts

  struct Origin {
    std::size_t part = 0, number = 0;
  };

  /// The sum with a storage number that no other part has.
  static ReadSum with_part(ReadSum sum, std::size_t part) {
    if (sum.storage >= kStoragesOfPart) throw FormatError("a part of a checkpoint has too many storages");
    sum.storage += static_cast<std::uint32_t>(part) * kStoragesOfPart;
    return sum;
  }

  void take_info(const SourceInfo& info) {
    if (parts_.size() == 1) {
      auto trainer = std::move(info_.trainer);
      info_ = info;
      info_.trainer = std::move(trainer);
      return;
    }
    info_.files.insert(info_.files.end(), info.files.begin(), info.files.end());
    info_.remarks.insert(info_.remarks.end(), info.remarks.begin(), info.remarks.end());
    info_.world_size = std::max(info_.world_size, info.world_size);
  }

  /// False for a value that needs a class of numpy or datetime, which is noted. A value that needs any other class is
  /// refused by name when it is read.
  bool is_kept(const Source& part, std::size_t value, const std::string& new_name) {
    try {
      part.value(value);
      return true;
    } catch (const ValueNotRead& refusal) {
      static const std::regex kHarmless(
          " needs ((numpy|datetime|torch\\.torch_version)\\.[A-Za-z0-9_.]+), which is refused");
      const std::string what = refusal.what();
      std::smatch match;
      if (!std::regex_search(what, match, kHarmless)) return true;
      left_out_.push_back(new_name.substr(0, 200) + " (" + match[1].str() + ")");
      return false;
    }
  }

  /// The list in "optim.param_groups.<group>.<field>" by group, as texts. \throws FormatError
  std::map<std::int64_t, std::vector<std::string>> texts_by_group(const std::string& field) const;

  std::vector<std::unique_ptr<Source>> parts_;
  std::vector<Origin> tensor_origins_, value_origins_;
  std::vector<std::shared_ptr<const PickleDocument>> own_values_;
  std::vector<std::string> left_out_;
};

/// The group of the value "optim.param_groups.<group>.<field>"; nothing for any other path.
std::optional<std::int64_t> group_of(const StatePath& path, const std::string& field) {
  if (path.size() != 4 || text_of(path[0]) != "optim" || text_of(path[1]) != "param_groups" ||
      text_of(path[3]) != field)
    return std::nullopt;
  const auto* group = std::get_if<std::int64_t>(&path[2]);
  return group != nullptr ? std::optional(*group) : std::nullopt;
}

/// True for "optim.state.<owner>.<key>".
bool is_state(const StatePath& path) {
  return path.size() >= 4 && text_of(path[0]) == "optim" && text_of(path[1]) == "state";
}

std::map<std::int64_t, std::vector<std::string>> TrainerSource::texts_by_group(const std::string& field) const {
  std::map<std::int64_t, std::vector<std::string>> groups;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const auto group = group_of(values_[i].path, field);
    if (!group) continue;
    const auto loaded = value(i);
    auto& texts = groups[*group];
    for (const auto& item : PickleNode{loaded.value, info_.directory.string(), values_[i].name}.items())
      texts.push_back(item.value->string() != nullptr ? item.text() : std::to_string(item.integer()));
  }
  return groups;
}

void TrainerSource::name_numbers(ParameterOrder order) {
  std::map<std::string, Shape> shapes;  // of states by number
  for (const auto& tensor : tensors_) {
    if (!is_state(tensor.path)) continue;
    const auto owner = text_of(tensor.path[2]);
    if (!is_decimal(owner)) return;  // it has names
    if (text_of(tensor.path[3]) != "step") shapes[owner] = tensor.shape;
  }
  if (shapes.empty()) return;
  const auto numbers = texts_by_group("params");
  auto names_by_group = texts_by_group("param_names");
  std::vector<std::vector<std::string>> groups;
  std::vector<NumberedGroup> numbered;
  bool has_names = true;
  for (const auto& [group, list] : numbers) {
    groups.push_back(list);
    auto& own = numbered.emplace_back();
    for (const auto& number : list) own.shapes.push_back(shapes.contains(number) ? shapes.at(number) : Shape{-1});
    own.names = std::move(names_by_group[group]);
    has_names = has_names && own.names.size() == list.size();
  }
  const bool is_unknown = order.empty();
  if (is_unknown && has_names) {  // a model that is not known here: as the file has them
    for (const auto& group : numbered)
      for (std::size_t i = 0; i < group.names.size(); ++i) order.emplace_back(group.names[i], group.shapes[i]);
  }
  std::vector<std::string> names_in_order;
  std::vector<Shape> shapes_in_order;
  for (const auto& [name, shape] : order) {
    names_in_order.push_back(name);
    shapes_in_order.push_back(shape);
  }
  const auto found = order.empty() ? std::nullopt : order_of_numbers(numbered, names_in_order, shapes_in_order);
  if (!found) {
    remark(
        fmt::format("its optimizer has numbers for names, and {} which parameter each number is: the state stays below "
                    "\"optim.state.<number>\"",
                    is_unknown ? "without a config.json of a model that is known here nothing says"
                               : "neither names nor shapes say"));
    return;
  }
  std::map<std::string, std::string> names;
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (std::size_t i = 0; i < groups[group].size(); ++i) names[groups[group][i]] = order[(*found)[group][i]].first;
  const auto rename = [&](auto& entry) {
    const auto name = is_state(entry.path) ? names.find(text_of(entry.path[2])) : names.end();
    if (name == names.end()) return;
    entry.path[2] = name->second;
    entry.name = joined(entry.path);
  };
  std::ranges::for_each(tensors_, rename);
  std::ranges::for_each(values_, rename);
  std::size_t group = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!group_of(values_[i].path, "params")) continue;
    auto params = nlohmann::json::array();
    for (const auto number : (*found)[group++]) params.push_back(order[number].first);
    value_origins_[i] = {kMadeHere, own_values_.size()};
    own_values_.push_back(document_of_json(params, values_[i].name));
  }
}

// ------------------------------------------------------------------------- folders of accelerate and of the Trainer

struct TrainerFolder {
  std::filesystem::path model, optimizer, scheduler, random, state;  ///< empty: there is none
};

/// The first of these that exists; empty: none.
std::filesystem::path first_of(const std::filesystem::path& directory, std::initializer_list<const char*> names) {
  std::error_code error;
  for (const auto* name : names)
    if (std::filesystem::is_regular_file(directory / name, error)) return directory / name;
  return {};
}

bool is_torch_file(const std::filesystem::path& path) {
  std::string first(16, '\0');
  const File file = File::open_read(path);
  first.resize(std::min<std::uint64_t>(first.size(), file.size_bytes()));
  file.read_at(0, std::as_writable_bytes(std::span(first.data(), first.size())));
  return looks_like_torch_file(first);
}

TrainerFolder list_trainer_folder(const std::filesystem::path& directory) {
  TrainerFolder found;
  const bool per_rank = !first_of(directory, {"pytorch_model_fsdp_0_rank0.bin"}).empty();
  if (is_dcp_directory(directory / "pytorch_model_fsdp_0")) {
    found.model = directory / "pytorch_model_fsdp_0";
  } else if (per_rank) {
    found.model = directory;  // the reader of files per rank takes the optimizer's, too
  } else if (const auto fsdp = first_of(directory, {"pytorch_model_fsdp.bin"}); !fsdp.empty()) {
    found.model = fsdp;
  } else if (is_safetensors_directory(directory)) {
    found.model = directory;
  } else {
    found.model = first_of(directory, {"pytorch_model.bin"});
    const bool has_index = !first_of(directory, {"pytorch_model.bin.index.json"}).empty();
    if (has_index || (found.model.empty() && is_torch_directory(directory))) found.model = directory;
  }
  if (is_dcp_directory(directory / "optimizer_0")) {
    found.optimizer = directory / "optimizer_0";
  } else if (!per_rank) {
    found.optimizer = first_of(directory, {"optimizer.bin", "optimizer.pt"});
  }
  found.scheduler = first_of(directory, {"scheduler.bin", "scheduler.pt"});
  found.random = first_of(directory, {"random_states_0.pkl", "rng_state.pth", "rng_state_0.pth"});
  found.state = first_of(directory, {"trainer_state.json"});
  return found;
}

/// The ranks that kept random numbers.
std::size_t count_random_states(const std::filesystem::path& directory) {
  static const std::regex kNames("(random_states_[0-9]{1,6}\\.pkl)|(rng_state(_[0-9]{1,6})?\\.pth)");
  std::size_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (std::regex_match(entry->path().filename().string(), kNames)) ++count;
  return count;
}

/// The objects that accelerate saved beside the first model and optimizer: others, and the script's own.
std::vector<std::string> other_objects(const std::filesystem::path& directory) {
  static const std::regex kNames(
      "((pytorch_model_fsdp|optimizer|scheduler)_[1-9][0-9]*(_rank0)?(\\.bin)?)|(model_[1-9][0-9]*\\.safetensors)|"
      "(custom_checkpoint_[0-9]+\\.pkl)|((scaler|sampler(_[0-9]+)?)\\.(pt|bin))|(dl_state_dict(_[0-9]+)?\\.bin)");
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (const auto name = entry->path().filename().string(); std::regex_match(name, kNames)) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

/// JSON as Python writes it, whose numbers that are not finite become null.
std::string without_nan(std::string_view text) {
  std::string clean;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto begin = at;
    if (in_string && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      const auto rest = text.substr(at);
      const auto length = rest.starts_with("NaN") ? 3u : rest.starts_with("Infinity") ? 8u : 0u;
      if (rest.starts_with("-Infinity")) continue;  // the minus sign; the word follows
      if (length > 0) {
        clean += "null";
        at += length - 1;
        continue;
      }
    }
    clean += text.substr(begin, at + 1 - begin);
  }
  return clean;
}

void add_trainer_state(TrainerSource& source, const std::filesystem::path& file) {
  const auto text = without_nan(read_text_file(file, kMostTrainerState_bytes));
  const auto state = parse_data_or_discard(text, file.string());
  if (!state.is_object()) throw FormatError(file.string() + ": is no JSON object");
  for (const auto& entry : state.items()) source.add_json({"trainer_state", entry.key()}, entry.value());
}

// ------------------------------------------------------------------------------------ files and folders of one reader

std::unique_ptr<Source> lightning_checkpoint(std::unique_ptr<Source> source, const std::filesystem::path& meta) {
  auto made = std::make_unique<TrainerSource>("Lightning");
  const bool is_file = meta.empty();
  const auto optimizer = [&](std::int64_t number) {
    return is_file ? StatePath{"optimizer_states", number} : StatePath{"optimizer_" + std::to_string(number)};
  };
  // Several optimizers, as of a GAN, keep their places.
  std::vector<Move> moves;
  if (!has_below(*source, optimizer(1))) moves.push_back(Move{.from = optimizer(0), .to = {"optim"}});
  const auto& model = made->add_part(std::move(source), moves, is_file);
  if (!is_file) made->add_part(std::make_unique<TorchSource>(meta, true), {}, true);
  const auto* torch = dynamic_cast<const TorchSource*>(&model);
  made->name_numbers(torch != nullptr ? order_of_state_dict(*torch, {"state_dict"}) : ParameterOrder());
  made->finish();
  return made;
}

std::unique_ptr<Source> composer_checkpoint(std::unique_ptr<Source> source) {
  auto made = std::make_unique<TrainerSource>("Composer");
  std::set<std::string> optimizers;
  for (const auto& tensor : source->tensors())
    if (tensor.path.size() > 3 && is_below(tensor.path, {"state", "optimizers"}))
      optimizers.insert(text_of(tensor.path[2]));
  std::vector<Move> moves{Move{.from = {"state", "model"}, .to = {"model"}}};
  if (optimizers.size() == 1)
    moves.push_back(Move{.from = {"state", "optimizers", *optimizers.begin()}, .to = {"optim"}});
  made->add_part(std::move(source), moves, true);
  made->finish();
  return made;
}

/// The target of Composer's link latest-rank0.pt, which some copies keep as a file with the name; empty: none.
std::filesystem::path target_of_link(const std::filesystem::path& directory) {
  std::error_code error;
  for (const char* name : {"latest-rank0.pt", "latest-rank0.pt.symlink"}) {
    const auto link = directory / name;
    if (std::filesystem::is_directory(link, error)) return link;
    const auto size = std::filesystem::file_size(link, error);
    if (error) continue;
    if (size > kLongestLink_bytes) return link;
    const auto text = read_text_file(link, kLongestLink_bytes);
    const auto target = std::filesystem::path(text.substr(0, text.find_first_of("\r\n"))).filename();
    // A name from a file must not lead out of the directory.
    if (target.empty() || target == "." || target == ".." || target.string().find('\0') != std::string::npos) continue;
    if (std::filesystem::exists(directory / target, error)) return directory / target;
  }
  return {};
}

/// Adds everything but the model.
void add_parts_beside(TrainerSource& made, const TrainerFolder& found) {
  if (!found.optimizer.empty()) {
    const bool is_file = std::filesystem::is_regular_file(found.optimizer);
    const std::vector<Move> of_dcp{Move{.from = {"optimizer"}, .to = {"optim"}}};
    made.add_part(open_weights(found.optimizer), is_file ? all_below("optim") : of_dcp, is_file);
  }
  const auto add_values = [&](const std::filesystem::path& file, const char* name) {
    if (file.empty()) return;
    if (!is_torch_file(file)) return made.remark("not read: " + file.filename().string());
    made.add_part(std::make_unique<TorchSource>(file, true), all_below(name), true);
  };
  add_values(found.scheduler, "lr_scheduler");
  add_values(found.random, "rng");
  if (!found.state.empty()) add_trainer_state(made, found.state);
}

/// The checkpoints that the names in a trainer's folder tell.
struct TrainerCheckpoints {
  std::filesystem::path newest;      ///< empty: none
  std::filesystem::path incomplete;  ///< a folder with the name of a newer one that holds no checkpoint; empty: none
};

TrainerCheckpoints find_checkpoints(const std::filesystem::path& directory) {
  // Composer's names, Lightning's, and those of all others.
  static const std::regex kNames(
      "(ep([0-9]{1,9})-ba([0-9]{1,18})(-rank0\\.pt)?)|(epoch=([0-9]{1,9})-step=([0-9]{1,18})\\.ckpt)|"
      "((step|checkpoint)[-_=]?([0-9]{1,18}))");
  using Place = std::pair<unsigned long long, unsigned long long>;  // epoch and step
  std::error_code error;
  if (auto target = target_of_link(directory); !target.empty()) return {std::move(target), {}};
  if (std::filesystem::exists(directory / "last.ckpt", error)) return {directory / "last.ckpt", {}};
  TrainerCheckpoints found;
  Place most, most_incomplete;
  const auto take = [](Place place, const std::filesystem::path& path, Place& of, std::filesystem::path& kept) {
    if (!kept.empty() && place <= of) return;
    of = place;
    kept = path;
  };
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto& path = entry->path();
    const auto name = path.filename().string();
    std::smatch match;
    if (!std::regex_match(name, match, kNames)) continue;
    const auto number = [&](std::size_t group) { return match[group].matched ? std::stoull(match[group]) : 0ull; };
    const Place place(number(2) + number(6), number(3) + number(7) + number(10));
    std::error_code ignored;
    const bool is_named_file = name.ends_with("-rank0.pt") || name.ends_with(".ckpt");
    if (std::filesystem::exists(path / "run.json", ignored)) continue;  // of fsdp-finetune
    if (!std::filesystem::is_directory(path, ignored)) {
      if (is_named_file) take(place, path, most, found.newest);
    } else if (holds_checkpoint(path)) {
      take(place, path, most, found.newest);
    } else {
      take(place, path, most_incomplete, found.incomplete);
    }
  }
  if (found.newest.empty() || most_incomplete <= most) found.incomplete.clear();
  return found;
}

}  // namespace

bool is_trainer_folder(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error) || is_dcp_directory(directory)) return false;
  const auto found = list_trainer_folder(directory);
  if (found.model.empty() || !first_of(directory, {"adapter_model.safetensors"}).empty()) return false;
  const bool is_fsdp = found.model.filename().string().starts_with("pytorch_model_fsdp");
  return (is_fsdp || !found.optimizer.empty() || !found.scheduler.empty()) && !is_deepspeed_folder(directory);
}

std::unique_ptr<Source> open_trainer_folder(const std::filesystem::path& directory) {
  const auto found = list_trainer_folder(directory);
  auto made = std::make_unique<TrainerSource>(found.state.empty() ? "accelerate" : "Hugging Face Trainer");
  const bool is_bare = found.model.filename() == "pytorch_model_fsdp.bin";
  const auto& model =
      made->add_part(open_weights(found.model), is_bare ? all_below("model") : std::vector<Move>(), false);
  made->set_directory(directory);
  try {
    add_parts_beside(*made, found);
  } catch (const FormatError& error) {
    throw FormatError(fmt::format("{} (the weights can be had alone: give {})", error.what(), found.model.string()),
                      error.advice());
  }
  const auto* torch = dynamic_cast<const TorchSource*>(&model);
  auto order = order_of_config(model);
  if (order.empty() && torch != nullptr) order = order_of_state_dict(*torch, {});
  made->name_numbers(order);
  made->set_world_size(count_random_states(directory));
  if (const auto others = other_objects(directory); !others.empty())
    made->remark(fmt::format("not read: {}", fmt::join(others, ", ")));
  made->finish();
  return made;
}

std::unique_ptr<Source> as_trainer_checkpoint(std::unique_ptr<Source> source) {
  const bool is_dcp = source->info().format == "DCP", is_torch = source->info().format.starts_with("torch ");
  if (!is_dcp && !is_torch) return source;
  if (has_below(*source, {"state", "model"}) &&
      (has_below(*source, {"state", "optimizers"}) || has_below(*source, {"state", "timestamp"})))
    return composer_checkpoint(std::move(source));
  if (is_torch) {
    return has_entry(*source, "pytorch-lightning_version") ? lightning_checkpoint(std::move(source), {})
                                                           : std::move(source);
  }
  if (const auto meta = first_of(source->info().directory, {"meta.pt"}); !meta.empty() && is_torch_file(meta))
    return lightning_checkpoint(std::move(source), meta);
  if (!has_entry(*source, "train_state.step")) return source;
  auto titan = std::make_unique<TrainerSource>("torchtitan");
  titan->add_part(std::move(source), {}, false);
  titan->finish();
  return titan;
}

std::filesystem::path newest_of_trainer(const std::filesystem::path& directory) {
  return find_checkpoints(directory).newest;
}

std::string incomplete_in_trainer(const std::filesystem::path& directory) {
  const auto found = find_checkpoints(directory);
  if (found.incomplete.empty()) return "";
  return fmt::format(
      "{}: has the name of a newer checkpoint and holds none (a save may have been cut short), so {} is taken",
      found.incomplete.string(), found.newest.filename().string());
}

}  // namespace fsdp
