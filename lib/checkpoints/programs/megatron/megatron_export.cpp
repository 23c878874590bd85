// Presents a model under Megatron-core's names and in its layout; megatron_source.cpp has the reverse.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/megatron/megatron_args.hpp"
#include "lib/checkpoints/programs/megatron/megatron_layout.hpp"
#include "lib/checkpoints/programs/megatron/megatron_source.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/torch_blob_writer.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {
namespace {

/// Names of optimizers' states, as sources give them: these, the parameter, a dot and the key.
constexpr std::array<std::string_view, 2> kStatePrefixes{"optim.state.", "optimizer.state."};

/// Buffers that follow from config.json.
bool is_buffer(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

/// Linear modules of a layer with state of the Transformer Engine, which its GPTModel asks for.
constexpr std::array<std::string_view, 4> kModulesWithState{"self_attention.linear_proj", "self_attention.linear_qkv",
                                                            "mlp.linear_fc1", "mlp.linear_fc2"};

class HfAsMegatron final : public DecoratedSource {
 public:
  HfAsMegatron(std::shared_ptr<const Source> source, const ModelConfig& config, bool masters)
      : DecoratedSource(std::move(source)), config_(config) {
    if (config_.has_scores())
      throw RequestError(
          "Megatron-core's checkpoints are written of language models, and this model scores texts: Hugging Face's "
          "format keeps it");
    if (!facts_of(config_).in_megatron)
      throw RequestError(fmt::format("Megatron-core's checkpoints are written of the kinds {}; this is none of them",
                                     fmt::join(types_with(&FamilyFacts::in_megatron), ", ")));
    for (auto& spec : parameter_table(config_)) shapes_.emplace(std::move(spec.name), std::move(spec.shape));
    find_weights();
    add_all("", weights_);
    add_states(masters);
    add_extra_states();
    info_.metadata.clear();
    if (!args_can_say_rope(config_))
      info_.remarks.push_back("args of Megatron-LM cannot say the rope_scaling of this model: " + config_.rope_scaling);
  }

  bool prefers_whole(std::size_t tensor) const override {
    const auto& parts = stacks_.at(tensor).parts;
    return std::ranges::any_of(parts, [&](const Part& part) {
      return std::ranges::any_of(part.tensors, [&](std::size_t number) { return inner_->prefers_whole(number); });
    });
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    check_read(tensors_.at(tensor), first, count, out.size());
    if (count == 0) return std::nullopt;
    const auto& stack = stacks_[tensor];
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    std::optional<std::uint32_t> crc = 0;
    for (std::uint64_t done = 0; done < count;) {
      const auto layer = (first + done) / stack.layer_elements, place = (first + done) % stack.layer_elements;
      const auto inside = place % stack.parts.front().runs.stride, run = place / stack.parts.front().runs.stride;
      const auto part = std::ranges::find_if(stack.parts, [&](const Part& candidate) {
        return inside >= candidate.runs.first && inside < candidate.runs.first + candidate.runs.length;
      });
      const auto begin = inside - part->runs.first;
      const auto length = std::min(count - done, part->runs.length - begin);
      const auto to = out.subspan(done * item, length * item);
      const auto piece = inner_->read(part->tensors[layer], run * part->runs.length + begin, length, to, sums);
      crc = crc && piece ? std::optional(crc32_combine(*crc, *piece, to.size())) : std::nullopt;
      done += length;
    }
    return crc;
  }

  LoadedValue value(std::size_t) const override { return nothing_; }

 private:
  using Numbers = std::map<std::string, std::size_t>;  // of tensors of the inner source, by parameter

  /// A part of each layer; `tensors` by layer.
  struct Part {
    megatron::Runs runs;
    std::vector<std::size_t> tensors;
  };
  /// The parts tile a layer. All have one stride.
  struct Stack {
    std::uint64_t layer_elements = 0;
    std::vector<Part> parts;
  };

  void find_weights() {
    const auto model = model_part(*inner_);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      if (!model.contains[i]) continue;
      const auto& tensor = inner_->tensors()[i];
      auto name = tensor.name.substr(tensor.name.starts_with(model.prefix) ? model.prefix.size() : 0);
      if (is_buffer(name)) continue;
      const auto shape = shapes_.find(name);
      if (shape == shapes_.end() && !is_tied_head(name))
        throw RequestError(
            fmt::format("'{}' has no place in the {} of the configuration", tensor.name, config_.traits.family),
            Remedy::model_only_or_exclude);
      weights_.emplace(std::move(name), i);
    }
    for (const auto& [alias, name] : tied_names(config_)) {
      const auto head = weights_.find(alias), embedding = weights_.find(name);
      if (head == weights_.end()) continue;
      if (embedding == weights_.end()) {
        weights_.emplace(name, head->second);
      } else if (!detail::are_equal(*inner_, head->second, embedding->second)) {
        throw RequestError(fmt::format("the configuration ties '{}' to '{}', but they differ", alias, name),
                           Remedy::exclude_one);
      }
      weights_.erase(alias);
    }
  }
  bool is_tied_head(const std::string& name) const {
    return std::ranges::any_of(tied_names(config_), [&](const auto& tie) { return tie.first == name; });
  }

  /// The number of a parameter's tensor, whose shape is that of the model.
  std::size_t number_of(const Numbers& numbers, const std::string& name, const std::string& what) const {
    const auto found = numbers.find(name);
    if (found == numbers.end())
      throw FormatError(fmt::format("{}: has no {} '{}', which a {} has", info_.directory.string(), what, name,
                                    config_.traits.family));
    const auto& tensor = inner_->tensors()[found->second];
    if (tensor.other || tensor.shape != shapes_.at(name))
      throw FormatError(fmt::format("{}: '{}' has the shape [{}], its configuration needs [{}]",
                                    info_.directory.string(), tensor.name, fmt::join(tensor.shape, ", "),
                                    fmt::join(shapes_.at(name), ", ")));
    return found->second;
  }

  /// Adds the tensors of all parameters below `above`.
  void add_all(const std::string& above, const Numbers& numbers) {
    const auto what = above.empty() ? std::string("parameter") : above + "*";
    for (const auto& name : megatron::kOuterNames) {
      if (!shapes_.contains(std::string(name.hf))) continue;
      add_stack(above + std::string(name.stored), std::span(&name, 1), 0, numbers, what);
    }
    const auto& names = megatron::kLayerNames;
    for (auto begin = names.begin(); begin != names.end();) {
      const auto end = std::find_if(begin, names.end(), [&](const auto& name) { return name.stored != begin->stored; });
      if (begin->is_written && shapes_.contains("model.layers.0." + std::string(begin->hf)))
        add_stack(above + std::string(megatron::kLayers) + std::string(begin->stored), {begin, end}, config_.num_layers,
                  numbers, what);
      begin = end;
    }
  }

  /// \param num_layers  0 for a tensor outside of the layers
  void add_stack(std::string name, std::span<const megatron::Name> rows, std::int64_t num_layers,
                 const Numbers& numbers, const std::string& what) {
    Stack stack;
    Shape shape;
    for (const auto& row : rows) {
      Part part;
      for (std::int64_t layer = 0; layer < std::max<std::int64_t>(num_layers, 1); ++layer) {
        const auto above = num_layers > 0 ? fmt::format("model.layers.{}.", layer) : std::string();
        part.tensors.push_back(number_of(numbers, above + std::string(row.hf), what));
      }
      shape = inner_->tensors()[part.tensors.front()].shape;
      const auto elements = element_count(shape);
      part.runs = megatron::runs_of(row.rows, elements, elements / static_cast<std::uint64_t>(shape.front()), config_);
      shape.front() = megatron::stored_rows(row.rows, shape.front(), config_);
      stack.layer_elements = element_count(shape);
      stack.parts.push_back(std::move(part));
    }
    if (num_layers > 0) shape.insert(shape.begin(), num_layers);
    const auto& first = inner_->tensors()[stack.parts.front().tensors.front()];
    for (const auto& part : stack.parts)
      for (const auto number : part.tensors)
        if (inner_->tensors()[number].dtype != first.dtype)
          throw RequestError(
              fmt::format("'{}' and '{}' are of different types and share a tensor in Megatron-core's checkpoints",
                          first.name, inner_->tensors()[number].name),
              Remedy::one_dtype);
    SourceTensor tensor{.name = name, .path = {name}, .dtype = first.dtype, .shape = std::move(shape)};
    tensor.num_shards = std::max<std::int64_t>(num_layers, 1);
    tensor.stored_bytes = tensor.size_bytes();
    tensors_.push_back(std::move(tensor));
    stacks_.push_back(std::move(stack));
  }

  /// Adds states in the shape of their parameters, if all parameters have them.
  void add_states(bool masters) {
    std::map<std::string, Numbers> states;  // by key
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      const auto& tensor = inner_->tensors()[i];
      for (const auto prefix : kStatePrefixes) {
        const auto end = tensor.name.rfind('.');
        if (!tensor.name.starts_with(prefix) || end < prefix.size()) continue;
        auto name = tensor.name.substr(prefix.size(), end - prefix.size());
        const auto key = tensor.name.substr(end + 1);
        if (is_tied_head(name)) name = tied_names(config_).front().second;
        const auto shape = shapes_.find(name);
        if (shape != shapes_.end() && tensor.shape == shape->second) states[key].emplace(name, i);
      }
    }
    for (const auto& [key, numbers] : states) {
      if (numbers.size() == shapes_.size()) {
        add_all(std::string(megatron::kState) + key + ".", numbers);
        has_states_ = true;
      } else {
        info_.remarks.push_back(fmt::format("the optimizer's {} is left out: {} of {} parameters have none", key,
                                            shapes_.size() - numbers.size(), shapes_.size()));
      }
    }
    const bool are_float32 = std::ranges::all_of(
        weights_, [&](const auto& weight) { return inner_->tensors()[weight.second].dtype == DType::f32; });
    if (masters && has_states_ && are_float32)
      add_all(std::string(megatron::kState) + std::string(megatron::kMasters) + ".", weights_);
  }

  void add_extra_states() {
    PickleWriter writer;
    writer.json(nlohmann::json::array({nullptr}));
    const auto document = std::make_shared<const PickleDocument>(
        read_pickle({.text = std::make_shared<const std::string>(writer.finish()), .file = "the state of modules"}));
    nothing_ = {document, document->root};
    for (const auto module : kModulesWithState) {
      for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
        auto name = fmt::format("{}{}._extra_state/shard_{}_{}", megatron::kLayers, module, layer, config_.num_layers);
        StatePath path{name};
        values_.push_back({.name = std::move(name), .path = std::move(path)});
      }
    }
  }

  ModelConfig config_;
  std::map<std::string, Shape> shapes_;  // of all parameters
  Numbers weights_;
  std::vector<Stack> stacks_;  // by tensor
  bool has_states_ = false;
  LoadedValue nothing_;
};

/// The number in a tensor of one element; nothing for any other.
std::optional<double> number_in(const Source& source, std::size_t number) {
  const auto& tensor = source.tensors()[number];
  if (num_elements(tensor.shape) != 1 || (tensor.dtype != DType::f32 && tensor.dtype != DType::i64))
    return std::nullopt;
  std::array<std::byte, sizeof(std::int64_t)> bytes{};
  source.read(number, 0, 1, std::span(bytes).first(dtype_size_bytes(tensor.dtype)), nullptr);
  float real = 0;
  std::int64_t whole = 0;
  std::memcpy(&real, bytes.data(), sizeof(real));
  std::memcpy(&whole, bytes.data(), sizeof(whole));
  return tensor.dtype == DType::f32 ? static_cast<double>(real) : static_cast<double>(whole);
}

/// The optimizer's steps that a checkpoint counts.
std::optional<std::int64_t> steps_of(const Source& source) {
  const nlohmann::json::json_pointer place("/state/optimizer_steps");
  const auto file = source.info().directory / "run.json";
  std::error_code error;
  auto run = run_in_values(source);
  if (std::filesystem::is_regular_file(file, error))
    run = parse_json_or_discard(read_text_file(file, 64u << 20), file.string());
  if (run.is_object() && run.contains(place) && run[place].is_number_integer()) return run[place].get<std::int64_t>();
  std::optional<double> steps;
  const auto is_step = [](const std::string& name) {
    return name.ends_with(".step") &&
           std::ranges::any_of(kStatePrefixes, [&](auto prefix) { return name.starts_with(prefix); });
  };
  for (std::size_t i = 0; i < source.values().size() && !steps; ++i) {
    const auto& name = source.values()[i].name;
    constexpr std::array<std::string_view, 4> names{"iteration", "global_steps", "global_step", "step"};
    if (!is_step(name) && std::ranges::find(names, name) == names.end()) continue;
    const auto loaded = source.value(i);
    if (const auto* whole = loaded.value->integer()) steps = static_cast<double>(*whole);
    if (const auto* real = loaded.value->real()) steps = *real;
  }
  for (std::size_t i = 0; i < source.tensors().size() && !steps; ++i)
    if (is_step(source.tensors()[i].name)) steps = number_in(source, i);
  return steps && *steps >= 0 && *steps < 9e15 ? std::optional(static_cast<std::int64_t>(*steps)) : std::nullopt;
}

/// Writes param_groups as a list of dicts, without the names of parameters.
void write_groups(PickleWriter& pickle, const Source& source) {
  std::map<std::int64_t, std::map<std::string, std::size_t>> groups;  // values by group and key
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& path = source.values()[i].path;
    constexpr std::size_t depth = 4;  // optim, param_groups, number, key
    if (path.size() != depth || path[1] != StatePath::value_type("param_groups")) continue;
    const auto* group = std::get_if<std::int64_t>(&path[2]);
    const auto* key = std::get_if<std::string>(&path[3]);
    if (group != nullptr && key != nullptr && *key != "params") groups[*group].emplace(*key, i);
  }
  pickle.empty_list();
  pickle.mark();
  for (const auto& [number, settings] : groups) {
    pickle.empty_dict();
    pickle.mark();
    for (const auto& [key, value] : settings) {
      const auto loaded = source.value(value);
      pickle.string(key);
      emit_pickle_value(pickle, *loaded.value, PickleStyle::faithful, source.values()[value].name);
    }
    pickle.set_items();
  }
  pickle.append_items();
}

}  // namespace

std::unique_ptr<Source> hf_as_megatron(std::shared_ptr<const Source> source, const ModelConfig& config, bool masters) {
  return std::make_unique<HfAsMegatron>(std::move(source), config, masters);
}

MegatronBeside megatron_beside(const Source& original, const ModelConfig& config, DType dtype, bool has_optimizer) {
  const auto steps = steps_of(original);
  PickleWriter pickle;
  pickle.empty_dict();
  pickle.mark();
  pickle.string("args");
  write_megatron_args(pickle, config, dtype, has_optimizer);
  pickle.string("checkpoint_version");
  pickle.real(3.0);
  pickle.string("iteration");
  pickle.integer(steps.value_or(0));
  pickle.string("num_floating_point_operations_so_far");
  pickle.real(0);
  if (has_optimizer) {
    pickle.string("optimizer");
    pickle.empty_dict();
    pickle.mark();
    pickle.string("param_groups");
    write_groups(pickle, original);
    if (steps) {
      pickle.string("state");
      pickle.json({{"common_step", *steps}});
    }
    pickle.set_items();
  }
  pickle.set_items();
  return {.folder = steps ? fmt::format("iter_{:07}", *steps) : "release",
          .common = plan_value_blob(pickle.finish()).head()};
}

}  // namespace fsdp
