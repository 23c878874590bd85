// Reads a dense Llama or Qwen of Megatron-core; megatron_export.cpp has the reverse.
#include "lib/checkpoints/programs/megatron/megatron_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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
#include "lib/checkpoints/programs/megatron/megatron_args.hpp"
#include "lib/checkpoints/programs/megatron/megatron_folder.hpp"
#include "lib/checkpoints/programs/megatron/megatron_layout.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {
namespace {

/// The beginning of all names of the model: nothing, or "module." and the like; nullopt when there is no GPTModel.
std::optional<std::string> prefix_of_model(const Source& source) {
  for (const auto& tensor : source.tensors()) {
    if (!tensor.name.ends_with(megatron::kEmbedding) || tensor.name.find(megatron::kState) != std::string::npos)
      continue;
    auto prefix = tensor.name.substr(0, tensor.name.size() - megatron::kEmbedding.size());
    if (!prefix.empty() && prefix.back() != '.') continue;
    const auto layers = prefix + std::string(megatron::kLayers);
    if (std::ranges::any_of(source.tensors(), [&](const auto& other) { return other.name.starts_with(layers); }))
      return prefix;
  }
  return std::nullopt;
}

LoadedValue made_value(const nlohmann::json& value) {
  PickleWriter writer;
  writer.json(value);
  const auto document = std::make_shared<const PickleDocument>(
      read_pickle({.text = std::make_shared<const std::string>(writer.finish()), .file = "a value that was made"}));
  return {document, document->root};
}

/// config.json, or the directory that holds one; null without a file.
nlohmann::json read_fields(const std::filesystem::path& given, std::filesystem::path& file) {
  std::error_code error;
  file = std::filesystem::is_directory(given, error) ? given / "config.json" : given;
  const auto text = read_text_file(file, 1u << 20);
  auto json = parse_json_or_discard(text, file.string());
  if (!json.is_object()) throw FormatError(file.string() + ": a JSON object was expected");
  return json;
}

class MegatronAsHf final : public DecoratedSource {
 public:
  MegatronAsHf(std::shared_ptr<const Source> source, const std::filesystem::path& named)
      : DecoratedSource(std::move(source)), where_(info_.directory.string()), prefix_(*prefix_of_model(*inner_)) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) numbers_.emplace(inner_->tensors()[i].name, i);
    common_ = MegatronCommon::of(*inner_);
    config_ = find_config(named);
    const auto table = parameter_table(config_);
    for (const auto& spec : table) add_parameter(spec);
    add_states(table);
    refuse_unused();
    add_values();
    check_unique_names(*this);
    info_.format = kMegatronFormat;
    info_.model_config = json_text(hf_config(config_));
    std::error_code error;
    const auto beside = info_.directory / kMegatronCommon;
    if (std::filesystem::is_regular_file(beside, error)) info_.files.push_back(beside);
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    check_read(tensors_.at(tensor), first, count, out.size());
    if (count == 0) return std::nullopt;
    const auto& place = places_[tensor];
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    std::optional<std::uint32_t> crc = 0;
    for (std::uint64_t done = 0; done < count;) {
      const auto run = (first + done) / place.runs.length, inside = (first + done) % place.runs.length;
      const auto length = std::min(count - done, place.runs.length - inside);
      const auto to = out.subspan(done * item, length * item);
      const auto from = place.runs.first + run * place.runs.stride + inside;
      const auto piece = inner_->read(inner_tensor_[tensor], from, length, to, sums);
      crc = crc && piece ? std::optional(crc32_combine(*crc, *piece, to.size())) : std::nullopt;
      done += length;
    }
    const auto end = element_count(tensors_[tensor].shape);
    if (sums != nullptr && first + count == end) read_padding(tensor, end, sums);
    return crc;
  }

  LoadedValue value(std::size_t value) const override { return loaded_.at(value); }

 private:
  /// A tensor that holds one of transformers, in one layer of a stack or by itself.
  struct Stored {
    std::size_t number = 0;
    const megatron::Name* name = nullptr;
    std::int64_t layer = 0, num_layers = 0;  ///< of a stack; 0 layers: no stack
  };
  struct Place {
    megatron::Runs runs;
    std::uint64_t padding = 0;  ///< elements after the tensor that belong to no tensor
  };

  // --- sizes ---
  std::optional<std::size_t> number_of(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found != numbers_.end() ? std::optional(found->second) : std::nullopt;
  }
  std::int64_t count_layers() const {
    std::int64_t layers = 0;
    const auto above = prefix_ + std::string(megatron::kLayers);
    for (const auto& [name, number] : numbers_) {
      if (!name.starts_with(above)) continue;
      const auto numbered = megatron::layer_of(above, name);
      const auto& shape = inner_->tensors()[number].shape;
      layers = std::max(layers, numbered ? numbered->first + 1 : shape.empty() ? 0 : shape.front());
    }
    return layers;
  }
  /// The shape of a tensor of the first layer; nothing without it.
  std::optional<Shape> layer_shape(std::string_view name) const {
    const auto above = prefix_ + std::string(megatron::kLayers);
    if (const auto number = number_of(above + "0." + std::string(name))) return inner_->tensors()[*number].shape;
    const auto number = number_of(above + std::string(name));
    if (!number || inner_->tensors()[*number].shape.empty()) return std::nullopt;
    const auto& shape = inner_->tensors()[*number].shape;
    return Shape(shape.begin() + 1, shape.end());
  }
  std::int64_t embedding_rows() const {
    const auto& shape = inner_->tensors()[numbers_.at(prefix_ + std::string(megatron::kEmbedding))].shape;
    return shape.empty() ? 0 : shape.front();
  }

  /// The fields of config.json that tensors show.
  nlohmann::json shown_fields() const {
    const auto has = [&](std::string_view name) { return layer_shape(name).has_value(); };
    nlohmann::json fields{{"num_hidden_layers", count_layers()},
                          {"vocab_size", embedding_rows()},
                          {"tie_word_embeddings", !number_of(prefix_ + "output_layer.weight")}};
    const auto& embedding = inner_->tensors()[numbers_.at(prefix_ + std::string(megatron::kEmbedding))].shape;
    if (embedding.size() == 2) fields["hidden_size"] = embedding[1];
    if (const auto gate_and_up = layer_shape("mlp.linear_fc1.weight"); gate_and_up && !gate_and_up->empty())
      fields["intermediate_size"] = gate_and_up->front() / 2;
    const bool qkv_bias = has("self_attention.linear_qkv.bias"), all_biases = has("self_attention.linear_proj.bias");
    const bool qwen3 = has("self_attention.q_layernorm.weight");
    fields["model_type"] = qwen3 ? "qwen3" : qkv_bias && !all_biases ? "qwen2" : "llama";
    if (all_biases) fields["attention_bias"] = true;
    if (has("mlp.linear_fc1.bias")) fields["mlp_bias"] = true;
    return fields;
  }

  /// Heads' width and the number of their groups follow from the number of heads and the matrices of attention.
  void add_head_sizes(nlohmann::json& fields) const {
    const auto heads_of = [&](const char* name) {
      const auto found = fields.find(name);
      return found != fields.end() && found->is_number_integer() ? found->get<std::int64_t>() : std::int64_t{0};
    };
    const auto heads = heads_of("num_attention_heads");
    if (heads < 1)
      throw RequestError(
          fmt::format("{}: nothing says how many heads attention has, and the tensors allow several numbers", where_),
          Remedy::megatron_heads);
    const auto output = layer_shape("self_attention.linear_proj.weight");
    const auto qkv = layer_shape("self_attention.linear_qkv.weight");
    if (!output || output->size() != 2 || !qkv || qkv->size() != 2) return;  // named below as missing
    if (heads_of("head_dim") == 0) {
      if (output->back() % heads != 0)
        throw FormatError(fmt::format("{}: linear_proj has {} columns, which are no {} heads of one width", where_,
                                      output->back(), heads));
      fields["head_dim"] = output->back() / heads;
    }
    if (heads_of("num_key_value_heads") != 0) return;
    const auto width = std::max<std::int64_t>(heads_of("head_dim"), 1);
    const auto key_rows = qkv->front() / width - heads;  // of keys and values
    if (qkv->front() % width != 0 || key_rows < 2 || key_rows % 2 != 0)
      throw FormatError(fmt::format("{}: linear_qkv has {} rows, which are no {} heads of {} rows with keys and values",
                                    where_, qkv->front(), heads, width));
    fields["num_key_value_heads"] = key_rows / 2;
  }

  ModelConfig find_config(const std::filesystem::path& named) {
    std::error_code error;
    std::filesystem::path file;
    nlohmann::json given;
    if (!named.empty()) {
      given = read_fields(named, file);
    } else if (std::filesystem::is_regular_file(info_.directory / "config.json", error)) {
      given = read_fields(info_.directory, file);
    }
    const auto arguments = common_ ? common_->arguments() : std::nullopt;
    const auto said = arguments ? config_fields_of_args(*arguments) : nlohmann::json::object();
    constexpr std::array sizes{"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                               "num_key_value_heads"};
    for (const auto* name : sizes) {
      if (!given.contains(name) || !said.contains(name) || given[name].is_null() || given[name] == said[name]) continue;
      throw RequestError(fmt::format("{} says {} {}, args in {} say {}: it is the config.json of another model",
                                     file.string(), name, json_text(given[name]), where_, json_text(said[name])));
    }
    const bool is_whole = given.contains("model_type");
    constexpr std::array others{
        "head_dim",     "vocab_size", "max_position_embeddings", "tie_word_embeddings", "rms_norm_eps",
        "rope_scaling", "rope_theta"};
    const auto is_given = [&](const char* name) { return given.contains(name); };
    if (given.is_object() && !is_whole && std::ranges::none_of(sizes, is_given) &&
        std::ranges::none_of(others, is_given))
      throw FormatError(fmt::format("{}: names no size of a model, as a config.json does ({}, {}, ...)", file.string(),
                                    sizes[0], others[1]));
    auto fields = is_whole ? given : shown_fields();
    if (!is_whole) {
      fields.update(said);
      if (given.is_object()) fields.update(given);
      add_head_sizes(fields);
    }
    const auto origin = file.empty() ? where_ + " (args and tensors)" : file.string();
    auto config = model_config_from_json(fields, origin);
    if (!facts_of(config).in_megatron)
      throw FormatError(fmt::format("{}: model_type {}: Megatron-core's tensors are read as one of {}", origin,
                                    json_text(fields["model_type"]),
                                    fmt::join(types_with(&FamilyFacts::in_megatron), ", ")));
    const auto ids = arguments ? arguments->find("vocab_size") : std::nullopt;
    const bool has_no_padding = ids && ids->value->integer() != nullptr && *ids->value->integer() == config.vocab_size;
    if (file.empty() && !has_no_padding) {
      info_.remarks.push_back(fmt::format(
          "{}: all {} rows of the embedding are kept; Megatron-core pads the vocabulary, whose size is not stored; "
          "a config.json with its vocab_size, given with the input, cuts the padding",
          where_, config.vocab_size));
    }
    return config;
  }

  // --- tensors ---
  /// The tensor of names that begin with `above` that holds the parameter `hf` of transformers.
  std::optional<Stored> find(const std::string& above, std::string_view hf) const {
    const auto layer = megatron::layer_of("model.layers.", hf);
    const auto rows = layer ? std::span<const megatron::Name>(megatron::kLayerNames)
                            : std::span<const megatron::Name>(megatron::kOuterNames);
    for (const auto& row : rows) {
      if (row.hf != (layer ? layer->second : hf)) continue;
      const auto name = std::string(row.stored);
      if (!layer) {
        if (const auto number = number_of(above + name)) return Stored{.number = *number, .name = &row};
        continue;
      }
      const auto layers = above + std::string(megatron::kLayers);
      if (const auto number = number_of(layers + std::to_string(layer->first) + "." + name))
        return Stored{.number = *number, .name = &row};
      if (const auto number = number_of(layers + name))
        return Stored{.number = *number, .name = &row, .layer = layer->first, .num_layers = config_.num_layers};
    }
    return std::nullopt;
  }

  /// The shape that holds a parameter of the shape `hf`, with the stored number of rows where that may be larger.
  Shape expected_shape(const Stored& stored, const Shape& hf) const {
    const auto& shape = inner_->tensors()[stored.number].shape;
    Shape expected = hf;
    expected.front() = megatron::stored_rows(stored.name->rows, hf.front(), config_);
    if (stored.name->rows == megatron::Rows::vocabulary && shape.size() == hf.size())
      expected.front() = std::max(expected.front(), shape.front());
    if (stored.num_layers > 0) expected.insert(expected.begin(), stored.num_layers);
    return expected;
  }
  bool fits(const Stored& stored, const ParameterSpec& spec) const {
    return inner_->tensors()[stored.number].shape == expected_shape(stored, spec.shape);
  }

  void add(const Stored& stored, const ParameterSpec& spec, StatePath path, std::string name) {
    const auto& inner = inner_->tensors()[stored.number];
    const auto elements = element_count(spec.shape);
    const auto columns = spec.shape.size() == 2 ? static_cast<std::uint64_t>(spec.shape[1]) : 1;
    Place place{.runs = megatron::runs_of(stored.name->rows, elements, columns, config_)};
    const auto in_all = element_count(inner.shape);
    if (stored.num_layers > 0) {
      place.runs.first +=
          in_all / static_cast<std::uint64_t>(stored.num_layers) * static_cast<std::uint64_t>(stored.layer);
    } else if (stored.name->rows == megatron::Rows::vocabulary) {
      place.padding = in_all - elements;
    }
    SourceTensor tensor{.name = std::move(name), .path = std::move(path), .dtype = inner.dtype, .shape = spec.shape};
    tensor.num_shards = std::max<std::int64_t>(1, inner.num_shards / std::max<std::int64_t>(1, stored.num_layers));
    tensor.stored_bytes = tensor.size_bytes();
    places_.push_back(place);
    add_tensor(stored.number, std::move(tensor));
  }

  void add_parameter(const ParameterSpec& spec) {
    const auto weights = find(prefix_, spec.name);
    if (!weights)
      throw FormatError(
          fmt::format("{}: holds no parameter '{}', which a {} has", where_, spec.name, config_.traits.family),
          Remedy::megatron_names);
    if (!fits(*weights, spec)) {
      const auto& tensor = inner_->tensors()[weights->number];
      throw FormatError(
          fmt::format("{}: '{}' has the shape [{}], a model of {} layers, {} heads of {} in {} groups, hidden size {}, "
                      "intermediate size {} and {} ids has [{}]",
                      where_, tensor.name, fmt::join(tensor.shape, ", "), config_.num_layers, config_.num_heads,
                      config_.head_width(), config_.kv_heads(), config_.embed_size, config_.ffn_hidden_size,
                      config_.vocab_size, fmt::join(expected_shape(*weights, spec.shape), ", ")),
          Remedy::model_config);
    }
    used_.insert(weights->number);
    const auto masters =
        find(std::string(megatron::kState) + std::string(megatron::kMasters) + "." + prefix_, spec.name);
    const bool has_master = masters && fits(*masters, spec);
    if (has_master) used_.insert(masters->number);
    add(has_master ? *masters : *weights, spec, {"model", spec.name}, "model." + spec.name);
  }

  /// The keys of the optimizer's states, without that of the masters.
  std::set<std::string> state_keys() const {
    std::set<std::string> keys;
    for (auto found = numbers_.lower_bound(std::string(megatron::kState)); found != numbers_.end(); ++found) {
      if (!found->first.starts_with(megatron::kState)) break;
      const auto end = found->first.find('.', megatron::kState.size());
      if (end != std::string::npos)
        keys.insert(found->first.substr(megatron::kState.size(), end - megatron::kState.size()));
    }
    keys.erase(std::string(megatron::kMasters));
    return keys;
  }

  /// Adds all states, or none where one is stored in another way.
  void add_states(const std::vector<ParameterSpec>& table) {
    struct State {
      Stored stored;
      const ParameterSpec* spec;
      std::string key;
    };
    std::vector<State> states;
    for (const auto& key : state_keys()) {
      for (const auto& spec : table) {
        const auto stored = find(std::string(megatron::kState) + key + "." + prefix_, spec.name);
        if (!stored) continue;
        if (!fits(*stored, spec)) {
          info_.remarks.push_back(fmt::format(
              "{}: the optimizer's state is left out: '{}' is not in the shape of its parameter, but in pieces of a "
              "distributed optimizer",
              where_, inner_->tensors()[stored->number].name));
          told_of_states_ = true;
          return;
        }
        states.push_back({*stored, &spec, key});
      }
    }
    for (auto& state : states) {
      used_.insert(state.stored.number);
      if (std::ranges::find(trained_, state.spec->name) == trained_.end()) trained_.push_back(state.spec->name);
      add(state.stored, *state.spec, {"optim", "state", state.spec->name, state.key},
          "optim.state." + state.spec->name + "." + state.key);
    }
  }

  void refuse_unused() {
    bool has_other_state = false;
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      const auto& name = inner_->tensors()[i].name;
      if (used_.contains(i)) continue;
      const bool is_state = name.starts_with("optimizer.") || name.find(".optimizer.") != std::string::npos;
      if (!is_state)
        throw FormatError(
            fmt::format("{}: '{}' has no place in a {} of {} layers: dense Llamas and Qwens are read as such", where_,
                        name, config_.traits.family, config_.num_layers),
            Remedy::megatron_names);
      has_other_state = true;
    }
    if (has_other_state && trained_.empty() && !told_of_states_)
      info_.remarks.push_back(where_ + ": the optimizer's state is left out: it is not stored parameter by parameter");
  }

  /// Reads and drops the padding after a tensor, so that checksums also cover what belongs to no tensor.
  void read_padding(std::size_t tensor, std::uint64_t end, std::vector<ReadSum>* sums) const {
    constexpr std::uint64_t most = 64u << 10;
    const auto padding = places_[tensor].padding, item = std::uint64_t{dtype_size_bytes(tensors_[tensor].dtype)};
    std::vector<std::byte> dropped(std::min(padding, most) * item);
    for (std::uint64_t done = 0; done < padding; done += most) {
      const auto piece = std::min(most, padding - done);
      inner_->read(inner_tensor_[tensor], end + done, piece, std::span(dropped).first(piece * item), sums);
    }
  }

  // --- values ---
  void add_loaded(StatePath path, std::string name, LoadedValue loaded) {
    values_.push_back({std::move(name), std::move(path)});
    loaded_.push_back(std::move(loaded));
  }
  /// Adds a value, or of a dict what is plain, and a remark on what is not.
  void add_plain(const StatePath& path, const PickleNode& node) {
    if (is_plain_value(*node.value)) return add_loaded(path, joined(path), {common_->document(), node.value});
    if (node.is_open_dict()) {
      for (const auto& [key, item] : node.entries()) {
        auto below = path;
        below.emplace_back(key);
        add_plain(below, item);
      }
      return;
    }
    left_out_.push_back(node.key);
  }
  void add_arguments() {
    const auto args = common_->root().find("args");
    if (!args) return;
    const auto attributes = common_->arguments();
    if (is_plain_value(*args->value) || !attributes) return add_plain({"args"}, *args);
    auto plain = nlohmann::json::object();
    for (const auto& [name, item] : attributes->entries()) {
      try {
        if (is_plain_value(*item.value)) plain[name] = pickle_to_json(*item.value, item.file);
      } catch (const FormatError&) {
        continue;  // a dtype or bytes, which is of no use to anyone else
      }
    }
    add_loaded({"args"}, "args", made_value(plain));
  }

  /// Settings of the groups, and the number of steps at each parameter.
  void add_optimizer() {
    std::optional<double> steps;
    auto node = common_->root().find("optimizer");
    if (node && node->find("optimizer")) node = node->find("optimizer");
    const auto groups = node ? node->find("param_groups") : std::nullopt;
    const auto state = node ? node->find("state") : std::nullopt;
    if (const auto found = state ? state->find("common_step") : std::nullopt) steps = common_->number(*found);
    if (groups && groups->value->list() != nullptr) {
      const auto items = groups->items();
      for (std::size_t i = 0; i < items.size(); ++i) {
        const StatePath path{"optim", "param_groups", static_cast<std::int64_t>(i)};
        if (pickled_mapping(*items[i].value) == nullptr) continue;
        for (const auto& [key, item] : items[i].entries()) {
          if (key == "step" && !steps) steps = common_->number(item);
          if (key == "params" || key == "step") continue;
          auto below = path;
          below.emplace_back(key);
          add_plain(below, item);
        }
        // The parameters of several groups are not stored.
        if (items.size() == 1 && !trained_.empty())
          add_loaded({"optim", "param_groups", std::int64_t{0}, "params"}, "optim.param_groups.0.params",
                     made_value(trained_));
      }
    }
    if (trained_.empty()) return;
    if (const auto iteration = common_->root().find("iteration"); !steps && iteration) {
      steps = common_->number(*iteration);
      if (steps)
        info_.remarks.push_back(fmt::format(
            "{}: the optimizer's number of steps is not stored: the iteration, {}, is taken", where_, *steps));
    }
    if (!steps || !(*steps >= 0 && *steps < 9e15)) return;
    const auto count = made_value(static_cast<std::int64_t>(*steps));
    for (const auto& name : trained_)
      add_loaded({"optim", "state", name, "step"}, "optim.state." + name + ".step", count);
  }

  void add_values() {
    if (!common_) return;
    for (const auto& [key, node] : common_->root().entries())
      if (key != "args" && !key.starts_with("optim") && !key.starts_with("model")) add_plain({key}, node);
    add_arguments();
    add_optimizer();
    if (std::ranges::any_of(inner_->values(), [](const auto& value) { return value.name.starts_with("rng_state"); }))
      left_out_.emplace_back("rng_state");
    constexpr std::size_t shown = 10;
    if (left_out_.size() > shown) {
      left_out_.resize(shown);
      left_out_.emplace_back("...");
    }
    if (!left_out_.empty())
      info_.remarks.push_back(fmt::format("{}: left out, because they need classes that are not read: {}", where_,
                                          fmt::join(left_out_, ", ")));
  }

  std::string where_, prefix_;
  std::map<std::string, std::size_t> numbers_;  // of all tensors, by name
  std::optional<MegatronCommon> common_;
  ModelConfig config_;
  std::set<std::size_t> used_;         // numbers of tensors that have a place
  bool told_of_states_ = false;        // why there are none
  std::vector<std::string> trained_;   // parameters with states
  std::vector<std::string> left_out_;  // values
  std::vector<Place> places_;          // by tensor
  std::vector<LoadedValue> loaded_;    // by value
};

}  // namespace

bool is_megatron(const Source& source) { return source.info().format == "DCP" && prefix_of_model(source); }

std::unique_ptr<Source> megatron_as_hf(std::shared_ptr<const Source> source, const std::filesystem::path& config) {
  return std::make_unique<MegatronAsHf>(std::move(source), config);
}

}  // namespace fsdp
