#include "lib/training/state/load/plan_load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"
#include "lib/checkpoints/transform/model_tensors.hpp"
#include "lib/models/config/trainable.hpp"
#include "lib/training/state/model_sizes.hpp"

namespace fsdp {
namespace {

void check_fit(const SourceTensor& tensor, const Shape& shape, const std::filesystem::path& path) {
  check_shape(tensor, shape, path);
  if (!is_loadable(tensor.dtype)) {
    throw FormatError(fmt::format("{}: '{}' is {}, a parameter must be float64, float32, bfloat16 or float16",
                                  path.string(), tensor.name, torch_name(tensor.dtype)));
  }
}

/// \param number_of  a tensor of `source`, by the name of a parameter with_adapter(); nothing: there is none
template <typename NumberOf>
LoadPlan plan_each_adapter(const std::vector<ParameterSpec>& table, const Source& source,
                           const std::filesystem::path& path, const NumberOf& number_of) {
  LoadPlan plan;
  plan.path = path;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!table[i].with_adapter()) continue;
    const std::optional<std::size_t> tensor = number_of(table[i].name);
    if (!tensor) throw FormatError(fmt::format("{}: the adapter's '{}' is missing", path.string(), table[i].name));
    check_fit(source.tensors()[*tensor], table[i].shape, path);
    plan.params.push_back(i);
    plan.weights.push_back(*tensor);
  }
  return plan;
}

/// State keys that an optimizer may lack, and that are ignored in the state of another optimizer.
constexpr std::array kDispensable{"max_exp_avg_sq", "compensation", "RMS", kChildFisher, kChildMask};

bool is_dispensable(std::string_view field) {
  return std::find(kDispensable.begin(), kDispensable.end(), field) != kDispensable.end();
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Dictionaries below a parameter's state: in which bitsandbytes keeps all, so that PyTorch's FSDP lets them be, and
/// what torchao's two moments are made of.
constexpr std::array<std::string_view, 3> kNested{".__bnb_optimizer_quant_state__", ".exp_avg", ".exp_avg_sq"};

/// Keys up to and with "state.", below which state is listed.
struct StatePlaces {
  std::set<std::string> by_name, by_number;
  std::set<std::string> fields;  ///< such as exp_avg

  /// Whether it is an optimizer's that keeps `keys`.
  bool are_of(const std::set<std::string>& keys) const {
    const auto all_in = [](const auto& some, const auto& all) {
      return std::all_of(some.begin(), some.end(), [&](const auto& f) { return is_dispensable(f) || all.contains(f); });
    };
    return all_in(keys, fields) && all_in(fields, keys);
  }
};

/// torchao's two optimizers have the same names for codes of 8 and of 4 bits.
bool has_other_codes(const Checkpoint& checkpoint, const RequestedStates& wish, const std::string& prefix,
                     const std::vector<std::string>& owners) {
  for (std::size_t i = 0; i < owners.size(); ++i) {
    for (const auto& wanted : wish.params[i]) {
      const auto index = wanted.is_codes ? checkpoint.tensor(prefix + owners[i] + "." + wanted.key) : std::nullopt;
      if (!index) continue;
      const auto here = num_elements(checkpoint.source().tensors()[*index].shape), ours = num_elements(wanted.shape);
      return here == 2 * ours || ours == 2 * here;
    }
  }
  return false;
}

/// The keys that any parameter wants.
std::set<std::string> wanted_keys(const RequestedStates& wish) {
  std::set<std::string> keys;
  for (const auto& tensors : wish.params) {
    for (const auto& tensor : tensors) keys.insert(tensor.key);
  }
  return keys;
}

StatePlaces find_state(const Checkpoint& checkpoint, const std::vector<ParameterSpec>& table) {
  constexpr std::string_view kState = "state.";
  std::set<std::string_view> names{"lm_head.weight"};
  for (const auto& spec : table) names.insert(spec.name);
  StatePlaces places;
  for (const auto& [name, index] : checkpoint.tensors()) {
    const auto last = name.rfind('.');
    if (last == std::string::npos) continue;
    const auto field = name.substr(last + 1);
    for (auto at = name.find(kState); at != std::string::npos && at < last; at = name.find(kState, at + 1)) {
      if (at != 0 && name[at - 1] != '.') continue;
      auto begin = at + kState.size();
      if (begin > last) continue;
      const auto& module = checkpoint.module_prefix();
      if (!module.empty() && name.compare(begin, module.size(), module) == 0 && begin + module.size() < last)
        begin += module.size();
      auto owner = std::string_view(name).substr(begin, last - begin);
      std::string inner;
      for (const auto nested : kNested) {
        if (!owner.ends_with(nested)) continue;
        owner.remove_suffix(nested.size());
        inner = std::string(nested.substr(1)) + ".";
        break;
      }
      if (!names.contains(owner) && !is_number(owner)) continue;
      if (field == "step") continue;
      places.fields.insert(inner + field);
      (is_number(owner) ? places.by_number : places.by_name).insert(name.substr(0, begin));
    }
  }
  return places;
}

/// One parameter's state below `owner` (the key without the field), `first` elements into it; steps go to `steps`.
class StateReader {
 public:
  StateReader(const Checkpoint& checkpoint, const RequestedStates& wish, OptimizerPlan& result)
      : checkpoint_(checkpoint), wish_(wish), result_(result) {
    for (const auto& tensors : wish.params) result_.states.emplace_back(tensors.size());
  }

  /// False when there is none. \param flat  the state of several parameters, one after the other
  bool take(std::size_t parameter, const std::string& owner, const Shape& shape, bool flat, std::uint64_t first) {
    std::string present, missing;
    const auto& wanted = wish_.params[parameter];
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto name = owner + "." + wanted[i].key;
      if (const auto index = checkpoint_.tensor(name)) {
        check_fit(*index, wanted[i], flat && wanted[i].shape == shape);
        result_.states[parameter][i] = TensorOffset{*index, first};
        present = name;
      } else if (!is_dispensable(wanted[i].key)) {
        missing = name;
      }
    }
    if (present.empty()) return false;
    if (!missing.empty()) {
      throw FormatError(fmt::format("{}: '{}' is missing beside '{}'", checkpoint_.path().string(), missing, present));
    }
    if (checkpoint_.tensor(owner + ".max_exp_avg_sq")) amsgrad_ = true;
    if (wish_.has_step[parameter]) add_step(owner + ".step");
    return true;
  }

  void finish(const ModelConfig& config, const std::vector<ParameterSpec>& table) {
    result_.found = true;
    std::int64_t missing = 0;
    const auto was_trained =
        checkpoint_.is_ours() ? trainable_parameters(table, tied_names(config), saved_freeze()) : std::vector<bool>();
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (!is_missing(i)) continue;
      ++missing;
      if (!was_trained.empty() && was_trained[i]) {
        throw FormatError(
            fmt::format("{}: the optimizer's state of '{}' is missing", checkpoint_.path().string(), table[i].name));
      }
    }
    if (missing > 0)
      remark(fmt::format("{} of {} parameters have no state (they were frozen): theirs starts at zero", missing,
                         table.size()));
    if (steps_.size() > 1)
      remark(fmt::format("its parameters have {} to {} steps: counted as {}", *steps_.begin(), *steps_.rbegin(),
                         *steps_.rbegin()));
    if (amsgrad_) remark("AMSGrad's max_exp_avg_sq is left out");
    if (!steps_.empty()) result_.steps = *steps_.rbegin();
    if (checkpoint_.run() && (checkpoint_.is_ours() || !has_steps()))
      result_.steps = checkpoint_.run()->state.optimizer_steps;
  }

 private:
  /// True if the needed state of the parameter is missing; take() ensures that either all or none of the state is
  /// there.
  bool is_missing(std::size_t parameter) const {
    const auto& wanted = wish_.params[parameter];
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!is_dispensable(wanted[i].key) && !result_.states[parameter][i]) return true;
    }
    return false;
  }

  FreezeOptions saved_freeze() const { return saved_freeze_options(checkpoint_.run()->options); }

  bool has_steps() const {
    return std::find(wish_.has_step.begin(), wish_.has_step.end(), true) != wish_.has_step.end();
  }

  void check_fit(std::size_t index, const RequestedStates::Tensor& wanted, bool flat) const {
    const auto& tensor = checkpoint_.source().tensors()[index];
    const bool fits = flat ? tensor.shape.size() == 1 : tensor.shape == wanted.shape;
    if (!fits) {
      throw FormatError(fmt::format("{}: '{}' has shape [{}], [{}] was expected", checkpoint_.path().string(),
                                    tensor.name, fmt::join(tensor.shape, ", "), fmt::join(wanted.shape, ", ")));
    }
    if (wanted.is_codes ? tensor.dtype != DType::u8 : !is_loadable(tensor.dtype)) {
      throw FormatError(fmt::format("{}: '{}' is {}, {} was expected", checkpoint_.path().string(), tensor.name,
                                    torch_name(tensor.dtype), wanted.is_codes ? "uint8" : "a floating-point type"));
    }
  }

  void add_step(const std::string& name) {
    if (checkpoint_.is_ours()) return;  // run.json tells, in one read
    const auto step = checkpoint_.number(name);
    if (!step) throw FormatError(checkpoint_.path().string() + ": '" + name + "' is missing or no number");
    if (!(*step >= 0 && *step < 9e15))
      throw FormatError(
          fmt::format("{}: '{}' is {}, a number of steps was expected", checkpoint_.path().string(), name, *step));
    steps_.insert(static_cast<std::int64_t>(*step));
  }

  void remark(const std::string& text) { result_.remark += (result_.remark.empty() ? "" : "; ") + text; }

  const Checkpoint& checkpoint_;
  const RequestedStates& wish_;
  OptimizerPlan& result_;
  std::set<std::int64_t> steps_;
  bool amsgrad_ = false;
};

/// The optimizer that a run of ours had; one that does not say had AdamW.
std::string_view saved_optimizer(const RunManifest& run) {
  if (!run.options.is_object()) return "adamw";
  return optimizer_type(run.options.value("optimizer", std::string("adamw"))).name;
}

/// The number of each parameter by the names that PyTorch 2.6 and later write beside the numbers of an optimizer of
/// named parameters (param_groups[i]["param_names"]); "" for a parameter without one, as a frozen one. Nothing where
/// the file has no such names of this model. \param groups  "...param_groups." \throws FormatError for a name that is
/// no parameter of the model's
std::optional<std::vector<std::string>> numbers_of_names(const Checkpoint& checkpoint, const std::string& groups,
                                                         const std::vector<ParameterSpec>& table) {
  std::vector<std::string> known, numbers(table.size());
  for (const auto& spec : table) known.push_back(spec.name);
  bool is_known = false;
  std::string unknown;
  for (int group = 0;; ++group) {
    const auto ids = checkpoint.list(fmt::format("{}{}.params", groups, group));
    const auto names = checkpoint.list(fmt::format("{}{}.param_names", groups, group));
    if (ids.empty()) break;
    if (names.size() != ids.size()) return std::nullopt;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto name = names[i].is_string() ? names[i].get<std::string>() : "";
      const auto place = find_parameter_name(name, known);
      if (place) numbers[*place] = json_text(ids[i]);
      if (!place) unknown = name;
      is_known = is_known || place;
    }
  }
  if (!is_known) return std::nullopt;  // flat parameters, for example
  if (!unknown.empty())
    throw FormatError(fmt::format("{}: its optimizer has a state of '{}', which is no parameter of the model",
                                  checkpoint.path().string(), unknown));
  return numbers;
}

/// optimizer.state_dict() numbers the parameters as model.parameters() lists them: one by one, or under FSDP1 without
/// use_orig_params as flat parameters, first what is outside the blocks, then block by block.
void take_by_number(StateReader& reader, const Checkpoint& checkpoint, const RequestedStates& wish,
                    const std::string& prefix, const std::vector<ParameterSpec>& table, const ModelConfig& config) {
  const auto file = checkpoint.path().string();
  const auto all_groups = prefix.substr(0, prefix.size() - std::string_view("state.").size()) + "param_groups.";
  if (const auto numbers = numbers_of_names(checkpoint, all_groups, table)) {
    for (std::size_t i = 0; i < table.size(); ++i)
      if (!(*numbers)[i].empty()) reader.take(i, prefix + (*numbers)[i], table[i].shape, false, 0);
    return;
  }
  const auto groups = all_groups + "1.params";
  if (checkpoint.has_value(groups) || checkpoint.has_value(groups + ".0")) {
    throw FormatError(file +
                          ": its optimizer state is by number over several parameter groups, so nothing says which "
                          "parameter is which",
                      Remedy::restart_from_weights);
  }
  const auto keys = wanted_keys(wish);
  const auto state = [&](std::size_t number) {
    std::optional<std::size_t> found;
    for (auto key = keys.begin(); key != keys.end() && !found; ++key)
      found = checkpoint.tensor(prefix + std::to_string(number) + "." + *key);
    return found;
  };
  const auto num_units = static_cast<std::size_t>(config.num_layers) + 1;
  std::size_t num_flat = 0;
  while (num_flat < num_units && state(num_flat) && checkpoint.source().tensors()[*state(num_flat)].shape.size() == 1)
    ++num_flat;
  if (num_flat != num_units || state(num_units)) {
    if (state(table.size())) {
      throw FormatError(fmt::format("{}: '{}' belongs to no parameter, the model has {}", file,
                                    checkpoint.source().tensors()[*state(table.size())].name, table.size()));
    }
    for (std::size_t i = 0; i < table.size(); ++i) reader.take(i, prefix + std::to_string(i), table[i].shape, false, 0);
    return;
  }
  std::vector<std::uint64_t> used(num_units, 0);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto unit = to_index(table[i].block + 1);
    reader.take(i, prefix + std::to_string(unit), table[i].shape, true, used[unit]);
    used[unit] += element_count(table[i].shape);
  }
  for (std::size_t unit = 0; unit < num_units; ++unit) {
    for (const auto& key : keys) {
      const auto index = checkpoint.tensor(prefix + std::to_string(unit) + "." + key);
      if (!index) continue;
      const auto& tensor = checkpoint.source().tensors()[*index];
      if (element_count(tensor.shape) == used[unit]) continue;
      throw FormatError(fmt::format("{}: '{}' has {} elements, the parameters of its unit have {}", file, tensor.name,
                                    num_elements(tensor.shape), used[unit]));
    }
  }
}

/// Whether all parameters that want this state have it. \param key  Child-Tuning's, of few parameters or none
bool has_all(const OptimizerPlan& plan, const RequestedStates& wish, std::string_view key) {
  bool some = false;
  for (std::size_t i = 0; i < plan.states.size(); ++i) {
    for (std::size_t s = 0; s < plan.states[i].size(); ++s) {
      if (wish.params[i][s].key != key) continue;
      if (!plan.states[i][s]) return false;
      some = true;
    }
  }
  return some;
}

}  // namespace

bool is_loadable(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

LoadPlan plan_weights(const Checkpoint& checkpoint, const ModelConfig& config) {
  LoadPlan plan;
  plan.path = checkpoint.path();
  const auto& tensors = checkpoint.source().tensors();
  const auto table = parameter_table(config);
  std::map<std::string, std::size_t> numbers;
  for (const auto& spec : table) {
    auto tensor = checkpoint.parameter(spec.name);
    if (const auto tied = tied_name_of(config, spec.name); !tensor && !tied.empty())
      tensor = checkpoint.parameter(tied);
    if (!tensor) {
      throw FormatError(fmt::format(
          "{}: parameter '{}' is missing{}", plan.path.string(), spec.name,
          spec.name.ends_with(".bias") ? ": models without biases are not supported" : " (the model's sizes need it)"));
    }
    check_fit(tensors[*tensor], spec.shape, plan.path);
    numbers.emplace(spec.name, plan.weights.size());
    plan.params.push_back(plan.weights.size());
    plan.weights.push_back(*tensor);
  }
  for (const auto& name : checkpoint.model_names()) {
    if (block_of(name) >= config.num_layers) {
      throw FormatError(fmt::format("{}: '{}' belongs to no block of the model, which has {}", plan.path.string(), name,
                                    config.num_layers));
    }
  }
  for (const auto& [alias, name] : tied_names(config)) {
    const auto copy = checkpoint.parameter(alias);
    const auto original = numbers.at(name);
    // Ours names one place twice.
    if (!copy || *copy == plan.weights[original] || checkpoint.is_ours()) continue;
    check_fit(tensors[*copy], table[original].shape, plan.path);
    plan.copies.emplace(original, *copy);
  }
  return plan;
}

LoadPlan plan_adapters(const Checkpoint& checkpoint, const std::vector<ParameterSpec>& table) {
  const auto& tensors = checkpoint.source().tensors();
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i) numbers.emplace(tensors[i].name, i);
  return plan_each_adapter(table, checkpoint.source(), checkpoint.path(), [&](const std::string& name) {
    const auto found = numbers.find("model." + name);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  });
}

LoadPlan plan_adapters(const AdapterPlan& adapter, const std::vector<ParameterSpec>& table) {
  std::set<std::string> known;
  for (const auto& spec : table) known.insert(spec.name);
  for (const auto& [name, tensor] : adapter.whole) {
    if (known.contains(name) || (adapter.lora.ensure_weight_tying && name == "lm_head.weight")) continue;
    throw FormatError(fmt::format("{}: \"{}\" is no parameter of the base", adapter.file.string(),
                                  adapter.source->tensors()[tensor].name));
  }
  auto plan = plan_each_adapter(table, *adapter.source, adapter.file, [&](const std::string& name) {
    for (const auto* tensors : {&adapter.whole, &adapter.tables}) {
      if (const auto found = tensors->find(name); found != tensors->end()) return std::optional(found->second);
    }
    const auto at = std::min(name.rfind(".lora_"), name.rfind(kTokenRows));
    const auto parts = at == std::string::npos ? adapter.parts.end() : adapter.parts.find(name.substr(0, at));
    if (parts == adapter.parts.end()) return std::optional<std::size_t>();
    return name.ends_with(kTokenRows)    ? parts->second.rows
           : name.ends_with(kEmbeddingA) ? parts->second.embedding_a
           : name.ends_with(kEmbeddingB) ? parts->second.embedding_b
           : name.ends_with("_A.weight") ? parts->second.a
           : name.ends_with("_B.weight") ? parts->second.b
           : name.ends_with("_B.bias")   ? parts->second.b_bias
                                         : parts->second.magnitude;
  });
  plan.must_be_finite = true;
  return plan;
}

LoadPlan plan_weights(const Source& source, const std::filesystem::path& directory, const ModelConfig& config,
                      const QuantizeConfig& quantize) {
  auto found = find_model_tensors(source, directory, config, quantize);
  const auto table = parameter_table(config);
  LoadPlan plan;
  plan.path = directory;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (found.missing.contains(i)) continue;
    plan.params.push_back(i);
    plan.weights.push_back(found.numbers[i]);
    if (!found.stored.contains(i)) check_fit(source.tensors()[found.numbers[i]], table[i].shape, directory);
  }
  for (const auto& [original, copy] : found.copies) check_fit(source.tensors()[copy], table[original].shape, directory);
  plan.copies = std::move(found.copies);
  plan.stored = std::move(found.stored);
  return plan;
}

RequestedStates wish_of(const Optimizer& optimizer) {
  RequestedStates wish;
  for (std::size_t i = 0; i < optimizer.num_params(); ++i) {
    auto& wanted = wish.params.emplace_back();
    for (const auto& state : optimizer.states(i))
      wanted.push_back({state.key, state.shape, state.values.dtype() == at::kByte});
    wish.has_step.push_back(optimizer.step_state(i) != StepState::none);
  }
  wish.kind = optimizer.options().kind;
  wish.optimizer = optimizer.name();
  return wish;
}

OptimizerPlan plan_optimizer_state(const Checkpoint& checkpoint, const ModelConfig& config,
                                   const std::vector<ParameterSpec>& table, const RequestedStates& wish) {
  OptimizerPlan result;
  const auto places = find_state(checkpoint, table);
  if (places.by_name.size() + places.by_number.size() > 1) {
    throw FormatError(fmt::format("{}: holds several optimizers, at '{}'", checkpoint.path().string(),
                                  fmt::join(places.by_name.empty() ? places.by_number : places.by_name, "', '")),
                      Remedy::convert_one);
  }
  const auto keys = wanted_keys(wish);
  if (places.fields.empty() || !places.are_of(keys)) {
    // A stateless optimizer may resume from any checkpoint without another optimizer's state.
    if (places.fields.empty() && keys.empty() && checkpoint.run()) {
      result.found = true;
      result.steps = checkpoint.run()->state.optimizer_steps;
    } else if (!places.fields.empty()) {
      result.remark = fmt::format("its optimizer is not {} ({})", wish.optimizer, fmt::join(places.fields, ", "));
    } else if (checkpoint.is_ours() && saved_optimizer(*checkpoint.run()) == wish.kind) {
      const bool alone = checkpoint.run()->weights_alone;
      throw FormatError(
          checkpoint.path().string() + (alone ? ": keeps its weights alone" : ": the optimizer's state is missing"),
          alone ? Remedy::newer_checkpoint : Remedy::none);
    }
    return result;
  }
  std::vector<std::string> owners;
  for (std::size_t i = 0; i < table.size(); ++i)
    owners.push_back(places.by_number.empty() ? table[i].name : std::to_string(i));
  if (has_other_codes(checkpoint, wish, *(places.by_number.empty() ? places.by_name : places.by_number).begin(),
                      owners)) {
    result.remark = fmt::format("its optimizer is not {} (codes of other sizes)", wish.optimizer);
    return result;
  }
  StateReader reader(checkpoint, wish, result);
  if (!places.by_number.empty()) {
    take_by_number(reader, checkpoint, wish, *places.by_number.begin(), table, config);
  } else {
    const auto& prefix = *places.by_name.begin();
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (reader.take(i, prefix + table[i].name, table[i].shape, false, 0)) continue;
      if (const auto tied = tied_name_of(config, table[i].name); !tied.empty())
        reader.take(i, prefix + tied, table[i].shape, false, 0);
    }
  }
  reader.finish(config, table);
  return result;
}

OptimizerPlan plan_optimizer_state(const Checkpoint& checkpoint, const ModelConfig& config,
                                   const std::vector<ParameterSpec>& table, Optimizer& optimizer) {
  const auto plan_for = [&](bool chosen) {
    optimizer.expect_child(chosen);
    const auto wish = wish_of(optimizer);
    auto plan = plan_optimizer_state(checkpoint, config, table, wish);
    plan.child = has_all(plan, wish, chosen ? kChildMask : kChildFisher);
    return plan;
  };
  const bool wants_child = optimizer.options().child_tuning.mode == ChildTuning::task_driven;
  if (wants_child && has_child(checkpoint)) {
    auto plan = plan_for(true);
    if (plan.child) return plan;
  }
  return plan_for(false);
}

bool has_child(const Checkpoint& checkpoint) {
  const auto ending = "." + std::string(kChildMask);
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [&](const auto& tensor) { return tensor.first.ends_with(ending); });
}

}  // namespace fsdp
