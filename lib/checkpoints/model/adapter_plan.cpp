#include "lib/checkpoints/model/adapter_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/adapter_rules.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

using Part = std::optional<std::size_t> AdapterParts::*;

/// The suffixes of tensor names after the name of the module. peft writes the first suffix of each part and also reads
/// the others, as they occur in a state dict of its model.
constexpr std::array<std::pair<std::string_view, Part>, 15> kParts{
    {{".lora_A.weight", &AdapterParts::a},
     {".lora_B.weight", &AdapterParts::b},
     {".lora_B.bias", &AdapterParts::b_bias},
     {".lora_magnitude_vector", &AdapterParts::magnitude},
     {".lora_A.default.weight", &AdapterParts::a},
     {".lora_B.default.weight", &AdapterParts::b},
     {".lora_B.default.bias", &AdapterParts::b_bias},
     {".lora_magnitude_vector.weight", &AdapterParts::magnitude},
     {".lora_magnitude_vector.default.weight", &AdapterParts::magnitude},
     {kEmbeddingA, &AdapterParts::embedding_a},
     {kEmbeddingB, &AdapterParts::embedding_b},
     {".lora_embedding_A.default", &AdapterParts::embedding_a},
     {".lora_embedding_B.default", &AdapterParts::embedding_b},
     {kTokenRows, &AdapterParts::rows},
     {".token_adapter.trainable_tokens_delta.default", &AdapterParts::rows}}};

/// A tensor of the file by what it belongs to.
struct Placed {
  std::size_t tensor;
  std::string owner;     ///< the module of a part, or the parameter of the base that the tensor replaces
  const Part* part;      ///< null: a whole parameter
  bool is_copy = false;  ///< among several tensors of one parameter the one that was trained
};

/// Removes the words that peft's wrappers put into names: "lm_head.modules_to_save.default.weight" is "lm_head.weight".
std::string without_wrappers(std::string name) {
  for (const std::string_view word : {".token_adapter.", ".base_layer.", ".modules_to_save.", ".default."}) {
    if (const auto at = name.find(word); at != std::string::npos) name.erase(at, word.size() - 1);
  }
  return name;
}

std::string owner_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

/// The choices of an adapter over the modules of a base.
class Targets {
 public:
  /// \param where  adapter_config.json, for messages
  Targets(const AdapterConfig& config, const std::vector<BaseModule>& base, std::string where)
      : lora_(config.lora), rules_(config.lora, where), where_(std::move(where)) {
    for (const auto& module : base) modules_.emplace(module.name, &module);
  }

  /// Gives tensors of a multimodal model's adapter the names of its language model, and leaves out those of its part
  /// for images. \return how many were left out
  std::size_t take_language_model(std::vector<Placed>& tensors) {
    const auto starts = [](std::string_view prefix) {
      return [prefix](const Placed& placed) { return placed.owner.starts_with(prefix); };
    };
    for (const char* prefix : {"language_model.", "model.language_model."})
      if (std::ranges::any_of(tensors, starts(prefix))) of_language_model_ = prefix;
    if (of_language_model_.empty()) return 0;
    for (auto& placed : tensors) placed.owner = language_model_name(placed.owner);
    return std::erase_if(tensors, [](const Placed& placed) { return placed.owner.empty(); });
  }

  /// Completes the names of an adapter of a model without its head: all of them lack the base's first word.
  void complete_names(std::vector<Placed>& tensors) {
    for (const char* first : {"model.", "transformer."}) {
      std::size_t as_they_are = 0, completed = 0;
      for (const auto& placed : tensors) {
        const auto module = placed.part == nullptr ? owner_of(placed.owner) : placed.owner;
        as_they_are += modules_.count(module);
        completed += modules_.count(first + module);
      }
      if (as_they_are > 0 || completed == 0) continue;
      first_ = first;
      for (auto& placed : tensors) placed.owner = first_ + placed.owner;
      return;
    }
  }

  /// Whether a parameter has a row per token: the weight of the embedding or of the head.
  bool is_table(const std::string& parameter) const {
    return parameter.ends_with(".weight") &&
           (is_token_embedding(owner_of(parameter)) || owner_of(parameter) == "lm_head");
  }
  /// Notes the rows of a table that is no trained copy: it takes the place of the base's.
  /// \throws FormatError where the base has more rows
  void take_vocabulary(const std::string& parameter, bool is_trained, AdapterPlan& plan, std::size_t tensor) const {
    const auto& [name, shape] = std::pair(plan.source->tensors()[tensor].name, plan.source->tensors()[tensor].shape);
    const auto module = modules_.find(owner_of(parameter));
    if (module == modules_.end() || module->second->rows == 0 || shape.size() != 2) return;
    if (shape[0] < module->second->rows)
      throw FormatError(fmt::format("{}: tensor \"{}\" has {} rows, and the base {}: fewer are not supported",
                                    plan.file.string(), name, shape[0], module->second->rows));
    if (!is_trained || shape[0] != module->second->rows) plan.lora.vocabulary = shape[0];
  }

  bool has(const std::string& module) const { return modules_.contains(module); }
  LoraModule module(const std::string& name) const { return rules_.module(own_name(name)); }

  /// The modules of the base that target_modules names.
  std::set<std::string> find() const {
    std::set<std::string> found;
    for (const auto& [name, module] : modules_) {
      if (!name.starts_with(first_) ||
          !rules_.is_target(own_name(name), module->can_have_adapter && module->is_in_block))
        continue;
      if (!module->can_have_adapter)
        throw FormatError(
            fmt::format("{}: target_modules names '{}', which can have no adapter here: matrices of the "
                        "blocks, embeddings and the head can",
                        where_, name));
      if (!module->other_type.empty())
        throw FormatError(
            fmt::format("{}: the base's tensor \"{}.weight\" is {}, and an adapter can be added to "
                        "floating-point numbers alone",
                        where_, name, module->other_type));
      found.insert(name);
    }
    if (found.empty()) throw FormatError(where_ + ": target_modules names no module of the base");
    return found;
  }

  /// Whether modules_to_save takes the parameter, by itself or by the one that it is tied to.
  bool is_saved(const std::string& parameter) const {
    if (rules_.is_saved(own_name(parameter))) return true;
    if (!lora_.ensure_weight_tying) return false;
    return std::any_of(modules_.begin(), modules_.end(), [&](const auto& named) {
      const auto head = named.first + ".weight", embedding = named.second->tied_to + ".weight";
      return !named.second->tied_to.empty() && ((parameter == head && rules_.is_saved(own_name(embedding))) ||
                                                (parameter == embedding && rules_.is_saved(own_name(head))));
    });
  }

  /// The entries of modules_to_save that end the name of no module of the base.
  std::vector<std::string> saved_in_vain() const {
    std::vector<std::string> vain;
    for (const auto& name : lora_.modules_to_save) {
      LoraConfig alone;
      alone.modules_to_save = {name};
      const LoraRules rules(alone, where_);
      if (std::none_of(modules_.begin(), modules_.end(),
                       [&](const auto& named) { return rules.is_saved(own_name(named.first) + ".weight"); }))
        vain.push_back(name);
    }
    return vain;
  }

  /// The modules with trained rows of tokens, and these tokens.
  std::map<std::string, std::vector<std::int64_t>> rows() const {
    std::map<std::string, std::vector<std::int64_t>> found;
    for (const auto& [end, ids] : lora_.token_rows) {
      for (const auto& [name, module] : modules_) {
        const bool is_meant = end.empty() ? is_token_embedding(name) : own_name(name).ends_with(end);
        if (is_meant && module->can_have_adapter && !module->is_in_block) found[name] = ids;
      }
    }
    return found;
  }

  bool is_trained_bias(const std::string& parameter, const std::set<std::string>& targets) const {
    if (!parameter.ends_with(".bias") || lora_.bias == LoraBias::none) return false;
    return lora_.bias == LoraBias::all || targets.contains(owner_of(parameter));
  }

 private:
  /// The name in the model that the adapter was made for.
  std::string own_name(const std::string& name) const {
    const auto own = name.starts_with(first_) ? name.substr(first_.size()) : name;
    constexpr std::string_view model = "model.";
    if (!of_language_model_.starts_with(model)) return of_language_model_ + own;
    return own.starts_with(model) ? of_language_model_ + own.substr(model.size()) : own;
  }

  LoraConfig lora_;
  LoraRules rules_;
  std::string where_;
  std::string first_;              ///< what names of the adapter lack
  std::string of_language_model_;  ///< what they have more: the language model's name in a multimodal model
  std::map<std::string, const BaseModule*> modules_;
};

/// \param tensor  of the file
FormatError not_described(const AdapterPlan& plan, std::size_t tensor) {
  return FormatError(
      fmt::format("{}: tensor \"{}\" is no part of an adapter of a matrix, and modules_to_save and bias do not take it",
                  plan.file.string(), plan.source->tensors()[tensor].name));
}

/// Whether ensure_weight_tying has an effect in peft, which knows the two weights by these names. An embedding of
/// another name (wte) parts from the head, unless the file has both. Weights that are two stay two.
bool keeps_tied(const LoraConfig& lora, const std::vector<BaseModule>& base, const std::vector<Placed>& tensors,
                const std::string& where) {
  if (std::ranges::all_of(base, [](const BaseModule& module) { return module.tied_to.empty(); })) return false;
  constexpr std::array<std::string_view, 2> kTied{"embed_tokens", "lm_head"};
  const auto is_tied = [&](const std::string& name) {
    return std::any_of(kTied.begin(), kTied.end(),
                       [&](std::string_view tied) { return name == tied || name.ends_with("." + std::string(tied)); });
  };
  LoraConfig targets;
  targets.targets = lora.targets;
  const LoraRules rules(targets, where);
  const auto is_target = [&](std::string_view name) { return rules.is_target(std::string(name), false); };
  if (std::ranges::any_of(lora.modules_to_save, is_tied) || std::ranges::any_of(rules.names(), is_tied) ||
      std::ranges::any_of(kTied, is_target))
    return true;
  const auto has = [&](auto&& is_meant) {
    return std::ranges::any_of(
        tensors, [&](const Placed& placed) { return placed.part == nullptr && is_meant(owner_of(placed.owner)); });
  };
  return has([](const auto& module) { return module == "lm_head"; }) && has(is_token_embedding);
}

bool acts_in_training_alone(const AdapterConfig& config, std::string_view name) {
  return std::any_of(config.training_parts.begin(), config.training_parts.end(),
                     [&](const auto& part) { return name.find(part) != std::string_view::npos; });
}

/// \throws FormatError naming a tensor that is not named as peft names an adapter's
std::vector<Placed> place_tensors(const AdapterPlan& plan, const AdapterConfig& config) {
  std::vector<Placed> placed;
  for (std::size_t i = 0; i < plan.source->tensors().size(); ++i) {
    const std::string_view whole = plan.source->tensors()[i].name;
    if (acts_in_training_alone(config, whole) || whole.find(".original_module.") != std::string_view::npos) continue;
    auto name = whole;
    if (!name.starts_with(kAdapterPrefix)) throw not_described(plan, i);
    name.remove_prefix(std::string_view(kAdapterPrefix).size());
    const auto part =
        std::find_if(kParts.begin(), kParts.end(), [&](const auto& known) { return name.ends_with(known.first); });
    if (part != kParts.end()) {
      placed.push_back({i, std::string(name.substr(0, name.size() - part->first.size())), &part->second});
    } else if (name.ends_with(".weight") || name.ends_with(".bias")) {
      const bool is_copy = name.find(".modules_to_save.") != std::string_view::npos;
      placed.push_back({i, without_wrappers(std::string(name)), nullptr, is_copy});
    } else {
      throw not_described(plan, i);
    }
  }
  return placed;
}

/// Fills the plan's parts and whole parameters with all that the file has. \throws FormatError naming a tensor that the
/// configuration does not describe
void sort_tensors(const std::vector<Placed>& tensors, const Targets& choices, const std::set<std::string>& targets,
                  AdapterPlan& plan) {
  for (const auto& [tensor, owner, part, is_copy] : tensors) {
    // Clang before 16 cannot capture a structured binding by reference.
    const auto refuse = [&plan, number = tensor](const char* why) {
      return FormatError(
          fmt::format("{}: tensor \"{}\" {}", plan.file.string(), plan.source->tensors()[number].name, why));
    };
    const bool is_whole = part == nullptr && (choices.is_saved(owner) || choices.is_trained_bias(owner, targets));
    const bool is_table = part == nullptr && !is_whole && choices.is_table(owner);
    if (part == nullptr && !is_whole && !is_table) throw not_described(plan, tensor);
    if (!choices.has(part == nullptr ? owner_of(owner) : owner))
      throw refuse("belongs to a module that the base does not have");
    if (part == nullptr) {
      if (choices.is_table(owner)) choices.take_vocabulary(owner, is_whole, plan, tensor);
      const auto [place, is_new] = (is_table ? plan.tables : plan.whole).emplace(owner, tensor);
      if (!is_new && is_copy) place->second = tensor;
      continue;
    }
    auto& place = plan.parts[owner].*(*part);
    if (place) throw refuse("is there under another name, too");
    place = tensor;
  }
  if (plan.parts.empty()) throw FormatError(plan.file.string() + ": holds no adapter");
}

/// Gives the parts of rows their tokens. \throws FormatError where the file lacks some, or has others
void check_rows(const std::vector<BaseModule>& base, const Targets& choices, AdapterPlan& plan) {
  const auto rows = choices.rows();
  for (const auto& module : base) {
    // With a vocabulary of its own peft writes the rows of tied weights under both names.
    const auto part = plan.parts.find(module.name);
    if (part == plan.parts.end() || !rows.contains(module.tied_to) || rows.contains(module.name)) continue;
    part->second.rows.reset();
    if (!part->second.is_low_rank()) plan.parts.erase(part);
  }
  for (const auto& [module, ids] : rows) {
    if (!plan.parts[module].rows)
      throw FormatError(fmt::format("{}: lacks the rows of {} in trainable_token_indices", plan.file.string(), module));
    plan.parts[module].row_ids = ids;
  }
  for (const auto& [module, parts] : plan.parts) {
    if (parts.rows && !rows.contains(module))
      throw FormatError(
          fmt::format("{}: has rows of {}, which trainable_token_indices does not name", plan.file.string(), module));
  }
}

void share_rows(const AdapterParts& embedding, AdapterParts& head) {
  head.rows = embedding.rows;
  head.row_ids = embedding.row_ids;
}

/// With ensure_weight_tying, peft gives head and embedding of a tied model the same adapter when target_modules names
/// one of them: both act, and the file has both. \throws FormatError where the file lacks one
void share_adapters(const std::vector<BaseModule>& base, std::set<std::string>& targets, AdapterPlan& plan) {
  for (const auto& module : base) {
    if (module.tied_to.empty() || (!targets.contains(module.name) && !targets.contains(module.tied_to))) continue;
    for (const auto& name : {module.name, module.tied_to}) {
      const auto part = plan.parts.find(name);
      if (part == plan.parts.end() || !part->second.is_low_rank())
        throw FormatError(
            fmt::format("{}: ensure_weight_tying gives {} and {} one adapter, and the file has none of {}",
                        plan.file.string(), module.name, module.tied_to, name));
      targets.insert(name);
    }
    plan.shares_adapter = true;
    plan.lora.ensure_weight_tying = false;  // of modules_to_save, which cannot take a module with an adapter
  }
}

/// Whether a module is a matrix of a GPT-2's block, which transformers keeps transposed.
bool is_transposed(const BaseModule& module) {
  return module.is_in_block && module.can_have_adapter && module.name.starts_with("transformer.h.") &&
         module.name.find(".c_") != std::string::npos;
}

/// Finds what modules_to_save takes and the file lacks, and whether a head parts from its embedding.
void check_saved(const std::vector<BaseModule>& base, const Targets& choices, AdapterPlan& plan) {
  for (const auto& module : base) {
    const auto weight = module.name + ".weight", other = module.tied_to + ".weight";
    if (module.tied_to.empty()) continue;
    const auto head = plan.parts.find(module.name), embedding = plan.parts.find(module.tied_to);
    // Rows of a tied embedding are the head's, too; all else changes one side.
    plan.unties =
        plan.unties || head != plan.parts.end() || (embedding != plan.parts.end() && embedding->second.is_low_rank());
    if (embedding != plan.parts.end() && embedding->second.rows && (head == plan.parts.end() || !head->second.rows))
      share_rows(embedding->second, plan.parts[module.name]);
    for (const auto& [name, twin] : {std::pair(weight, other), std::pair(other, weight)})
      if (const auto table = plan.tables.find(twin); table != plan.tables.end())
        plan.tables.emplace(name, table->second);
    if (!plan.whole.contains(weight) && !plan.whole.contains(other)) continue;
    if (!plan.lora.ensure_weight_tying) {
      plan.unties = true;
      continue;
    }
    // One parameter under two names, which a run's checkpoint holds once.
    plan.whole.emplace(weight, plan.whole[plan.whole.contains(other) ? other : weight]);
    plan.whole.emplace(other, plan.whole[weight]);
  }
  for (const auto& [name, tensor] : plan.tables) plan.lora.tables.push_back(name);
  for (const auto& module : base) {
    const auto weight = module.name + ".weight";
    if (choices.is_saved(weight) && is_transposed(module))
      throw FormatError(
          fmt::format("{}: modules_to_save takes \"{}\", and of a GPT-2 only what is no matrix of a block is supported",
                      plan.file.string(), weight));
    if (choices.is_saved(weight) && !plan.whole.contains(weight))
      throw FormatError(fmt::format("{}: lacks \"{}\", which modules_to_save takes", plan.file.string(), weight));
  }
}

void check_whole(const std::string& module, const AdapterParts& parts, const LoraConfig& lora,
                 const std::string& file) {
  if (parts.rows && !parts.is_low_rank()) return;
  const auto wrong = [&](const char* what) {
    return FormatError(fmt::format("{}: the adapter of {} {}", file, module, what));
  };
  if (parts.embedding_a && parts.embedding_b && !parts.a && !parts.b) {
    if (lora.dora) throw wrong("is DoRA (use_dora) of an embedding, which is not supported");
    return;
  }
  if (!parts.a || !parts.b || parts.embedding_a || parts.embedding_b) throw wrong("lacks its lora_A or its lora_B");
  if (lora.dora != parts.magnitude.has_value())
    throw wrong("has a lora_magnitude_vector where adapter_config.json says use_dora false, or the reverse");
  if (lora.lora_bias != parts.b_bias.has_value())
    throw wrong("has a lora_B.bias where adapter_config.json says lora_bias false, or the reverse");
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::vector<std::string> shown(names.begin(), names.begin() + std::min(kShown, names.size()));
  return fmt::format("{} ({}{})", names.size(), fmt::join(shown, ", "), names.size() > kShown ? ", ..." : "");
}

std::filesystem::path weights_of(const std::filesystem::path& directory) {
  std::error_code error;
  const bool is_pickle = !std::filesystem::exists(directory / kAdapterWeights, error) &&
                         std::filesystem::exists(directory / kAdapterPickle, error);
  return directory / (is_pickle ? kAdapterPickle : kAdapterWeights);
}

/// The adapters of a checkpoint of fsdp-finetune, named as in peft's files.
std::shared_ptr<const Source> with_names_of_peft(std::shared_ptr<const Source> checkpoint) {
  SelectOptions adapters;
  adapters.include = {"model.*"};
  adapters.rename.emplace_back("^model\\.", kAdapterPrefix);
  return select(std::move(checkpoint), adapters);
}

}  // namespace

bool is_token_embedding(const std::string& module) {
  return std::ranges::any_of(token_embeddings(), [&](auto name) { return name == module + ".weight"; });
}

std::vector<BaseModule> base_modules(const ModelConfig& config) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<BaseModule> modules;
  const auto add = [&](std::string_view name, bool is_matrix_of_block, bool is_embedding) {
    if (!name.ends_with(kWeight)) return;
    name.remove_suffix(kWeight.size());
    const bool is_token_table = is_token_embedding(std::string(name)) || name == "lm_head";
    modules.push_back({std::string(name), is_matrix_of_block || is_embedding || is_token_table, is_matrix_of_block});
    if (is_token_table) modules.back().rows = config.vocab_size;
  };
  for (const auto& spec : parameter_table(config)) add(spec.name, spec.is_matrix_of_block(), spec.embedding);
  for (const auto& [alias, name] : tied_names(config)) {
    add(alias, false, false);
    modules.back().tied_to = owner_of(name);
  }
  return modules;
}

AdapterPlan plan_adapter(const std::filesystem::path& given, const std::vector<BaseModule>& base) {
  const auto directory = checkpoint_in_run(given);
  std::error_code error;
  const auto run =
      std::filesystem::exists(directory / kAdapterConfig, error) ? nlohmann::json() : adapters_of_run(directory);
  const auto where = (directory / (run.is_null() ? kAdapterConfig : "run.json")).string();
  auto config = run.is_null() ? read_adapter_config(directory) : adapter_config_from_json(run["adapter"], where);
  AdapterPlan plan;
  plan.file = run.is_null() ? weights_of(directory) : directory;
  plan.source = open_source(plan.file);
  if (!run.is_null()) plan.source = with_names_of_peft(std::move(plan.source));
  auto tensors = place_tensors(plan, config);
  if (run.is_null() && config.lora.ensure_weight_tying)
    config.lora.ensure_weight_tying = keeps_tied(config.lora, base, tensors, where);
  plan.lora = config.lora;
  Targets choices(config, base, where);
  const auto of_images = choices.take_language_model(tensors);
  choices.complete_names(tensors);
  auto targets = choices.find();
  sort_tensors(tensors, choices, targets, plan);
  check_rows(base, choices, plan);
  auto& lora = plan.lora;
  const auto in_vain = choices.saved_in_vain();
  std::erase_if(lora.modules_to_save, [&](const auto& name) { return std::ranges::count(in_vain, name) > 0; });
  if (lora.ensure_weight_tying) share_adapters(base, targets, plan);
  lora.targets.clear(), lora.exclude.clear(), lora.layers.clear(), lora.layers_patterns.clear();
  lora.rank_pattern.clear(), lora.alpha_pattern.clear();
  std::vector<std::string> not_named;
  std::erase_if(plan.parts, [&](const auto& named) {
    const bool acts = targets.contains(named.first) || named.second.rows;
    if (!acts) not_named.push_back(named.first);
    return !acts;
  });
  check_saved(base, choices, plan);
  for (auto& [module, parts] : plan.parts) {
    check_whole(module, parts, lora, plan.file.string());
    if (!parts.is_low_rank()) continue;
    parts.adapter = choices.module(module);
    lora.targets.push_back(module);
    if (parts.adapter.rank != lora.rank) lora.rank_pattern.emplace_back(module, parts.adapter.rank);
    if (parts.adapter.alpha != lora.alpha) lora.alpha_pattern.emplace_back(module, parts.adapter.alpha);
  }
  if (plan.parts.empty())
    throw FormatError(
        fmt::format("{}: target_modules names none of the {} modules that {} has an adapter of, such as {}", where,
                    not_named.size(), plan.file.filename().string(), not_named.front()));
  std::vector<std::string> without;
  for (const auto& module : targets) {
    if (!plan.parts.contains(module)) without.push_back(module);
  }
  if (config.starts_by_chance && !without.empty())
    throw FormatError(
        fmt::format("{}: has no adapter of {}, which target_modules names, and init_lora_weights is false: "
                    "peft would begin it by chance",
                    plan.file.string(), without.front()));
  if (of_images > 0)
    plan.remarks.push_back(
        fmt::format("{}: is of a multimodal model: its {} tensors for the part for images are left out",
                    plan.file.string(), of_images));
  if (!not_named.empty())
    plan.remarks.push_back(
        fmt::format("{}: target_modules does not name modules that the file has an adapter of, so "
                    "as in peft these do not act: {}",
                    where, first_of(not_named)));
  if (!in_vain.empty())
    plan.remarks.push_back(
        fmt::format("{}: modules_to_save names no module of the base by '{}', so as in peft this has no effect", where,
                    fmt::join(in_vain, "', '")));
  if (!config.training_parts.empty())
    plan.remarks.push_back(where +
                           ": velora_config and monteclora_config change how an adapter is trained, not what it "
                           "computes; training here goes on without them");
  if (!without.empty())
    plan.remarks.push_back(
        fmt::format("{}: has no adapter of modules that target_modules names, so they stay as the "
                    "base has them: {}",
                    plan.file.string(), first_of(without)));
  return plan;
}

std::int64_t scores_of_adapter(const std::filesystem::path& given) {
  const auto directory = checkpoint_in_run(given);
  std::error_code error;
  const bool is_run = !std::filesystem::exists(directory / kAdapterConfig, error);
  const auto source = open_source(is_run ? directory : weights_of(directory));
  for (const auto& tensor : source->tensors()) {
    const auto name = without_wrappers(tensor.name);
    if (!name.ends_with("." + std::string(kScoreWeight)) || tensor.shape.size() != 2 || name.starts_with("optim"))
      continue;
    if (tensor.shape[0] >= 1 && tensor.shape[0] <= kMostLabels) return tensor.shape[0];
    throw FormatError(fmt::format("{}: '{}' has {} rows, expected one for each label, 1 to {}", directory.string(),
                                  tensor.name, tensor.shape[0], kMostLabels));
  }
  return 0;
}

AdapterPlan plan_adapter_of_model(const std::filesystem::path& directory, const ModelConfig& config,
                                  const QuantizeConfig& quantize) {
  auto plan = plan_adapter(directory, base_modules(config));
  if (const auto head = plan.parts.find("lm_head"); head != plan.parts.end() && head->second.magnitude)
    throw FormatError(
        fmt::format("{}: the adapter of lm_head is DoRA (use_dora), which only a merge takes", plan.file.string()),
        {Remedy::merge_first, directory.string()});
  try {
    const auto model = adapted_model(config, plan.lora);
    auto table = quantized_table(model, quantize);
    mark_saved_parameters(table, model, plan.lora);
    adapter_table(model, plan.lora);
  } catch (const RequestError& error) {
    throw FormatError(fmt::format("{}: {}", plan.file.string(), error.what()), error.advice());
  }
  return plan;
}

}  // namespace fsdp
