#include "lib/files/transform/local_state.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/transform/flat_pieces.hpp"
#include "lib/files/transform/flat_units.hpp"
#include "lib/files/transform/raw_optim.hpp"
#include "lib/files/transform/transform_decorated.hpp"

namespace fsdp {
namespace {

using Ties = std::vector<std::pair<std::string, std::string>>;

/// The shapes with all ties resolved: every first name is no parameter, every second one is.
ParameterShapes resolve_ties(const UnFlattenOptions& options) {
  auto shapes = options.shapes;
  std::unordered_map<std::string, std::string> shared;
  std::vector<std::string> order;
  for (const auto* ties : {&options.shapes.ties, &options.ties}) {
    for (const auto& [name, other] : *ties) {
      if (!shared.contains(name)) order.push_back(name);
      shared[name] = other;  // the user's word counts
    }
  }
  // A parameter that is named as tied has no storage of its own.
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
      throw UsageError("\"" + name + "\" is listed without a shape in " + shapes.origin +
                       ": say which parameter it shares with --tie " + name + "=OTHER");
    }
    if (!names.contains(target)) {
      throw UsageError("--tie " + name + "=" + target + ": there is no parameter \"" + target + "\" in " +
                       shapes.origin);
    }
    shapes.ties.emplace_back(name, target);
  }
  return shapes;
}

/// The place of a parameter in the nested dict: that of its unit's flat parameter with the name exchanged.
StatePath path_beside(const SourceTensor& flat, const std::string& module, const std::string& full_name) {
  auto path = flat.path;
  auto* last = path.empty() ? nullptr : std::get_if<std::string>(&path.back());
  if (last == nullptr || !flat.name.ends_with(*last)) return {full_name};
  const auto nesting = flat.name.size() - last->size();  // characters of the name that the other elements make up
  if (nesting > module.size() || full_name.size() <= nesting ||
      full_name.compare(0, nesting, flat.name, 0, nesting) != 0) {
    return {full_name};
  }
  *last = full_name.substr(nesting);
  return path;
}

/// How many shards elements [first, first + count) lie in: all shards but the last are equally long.
std::int64_t shards_in(const SourceTensor& flat, std::uint64_t first, std::uint64_t count) {
  const auto size = static_cast<std::uint64_t>(num_elements(flat.shape));
  if (count == 0 || size == 0) return 0;
  const auto shards = static_cast<std::uint64_t>(std::max<std::int64_t>(1, flat.num_shards));
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

  /// One rank's local state is a full state dict.
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
    result_->add_tensor(tensor, {{0, number, 0, static_cast<std::uint64_t>(num_elements(tensor.shape))}});
  }

  void add_plain_alias(std::size_t number, const std::string& full_name) {
    auto tensor = source_->tensors()[number];
    tensor.path = path_beside(tensor, tensor.name, full_name);
    tensor.name = full_name;
    const auto count = static_cast<std::uint64_t>(num_elements(tensor.shape));
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
    if (item.gap > 0) padding.push_back({0, unit.tensor, item.offset + item.count, item.gap});
    result_->add_tensor(std::move(tensor), {{0, unit.tensor, item.offset, item.count}}, std::move(padding), is_alias);
  }

  /// In the order of the model rather than of the units.
  void add_parameters() {
    place_of_.resize(shapes_.parameters.size(), {nullptr, nullptr});
    for (const auto& unit : units_.units) {
      for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
        place_of_[unit.parameters[i]] = {&unit, &unit.layout.items[i]};
      }
    }
    for (std::size_t i = 0; i < shapes_.parameters.size(); ++i) {
      const auto [unit, item] = place_of_[i];
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
      const auto [unit, item] = place_of_[static_cast<std::size_t>(it - shapes_.parameters.begin())];
      const auto full_name = units_.prefix + name;
      covered_.insert(full_name);
      if (unit != nullptr) {
        add_parameter(*unit, *item, full_name, it->shape, true);
      } else {
        add_plain_alias(number_of_.at(units_.prefix + other), full_name);
      }
    }
  }

  /// Buffers, and tensors outside the model. Under use_orig_params the dict also holds a slice of every parameter, one
  /// rank's: those of parameters that have no shape here must not pass for tensors.
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
        throw UsageError("\"" + tensor.name + "\" looks like one rank's slice of a parameter that " + shapes_.origin +
                         " does not list: add it there or, if it shares another one's storage, give --tie " +
                         tensor.name.substr(units_.prefix.size()) + "=OTHER");
      }
      add_plain(i);
    }
  }

  std::shared_ptr<const Source> source_;
  ParameterShapes shapes_;
  FlatUnits units_;
  std::unordered_map<std::string, std::size_t> number_of_;
  std::unique_ptr<PieceSource> result_;
  std::vector<std::pair<const FlatUnit*, const FlatItem*>> place_of_;  // by parameter
  std::unordered_set<std::string> covered_;
};

}  // namespace

std::unique_ptr<Source> un_flatten(std::shared_ptr<const Source> source, const UnFlattenOptions& options) {
  return UnFlattener(std::move(source), options).run();
}

}  // namespace fsdp
