#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "apps/common/finetune_options.hpp"
#include "apps/common/objective_arguments.hpp"
#include "apps/common/remedies.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/model/adapter_plan.hpp"
#include "lib/hub/nearby_paths.hpp"
#include "lib/hub/snapshot_store.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/score_head.hpp"
#include "lib/templates/chat/chat_template.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/run/saved_path.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {

/// Returns the rows whose values a checkpoint keeps.
std::vector<CLI::Option*> saved_options(OptionTable& table) {
  return table.get_options([&](const CLI::Option* o) { return table.facts(o).at_restart == AtRestart::saved; });
}

/// Refuses a --model of other sizes than the checkpoint's: its weights would not be read. A vocabulary grows.
void check_model(const ModelOptions& o, const ModelConfig& config, const std::filesystem::path& checkpoint) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::path(o.directory) / "config.json", error)) return;
  const auto sizes = [](const ModelConfig& c) {
    return fmt::format("{}, {} layers, {} heads, width {}, {}", facts_of(c).type, c.num_layers, c.num_heads,
                       c.embed_size, c.ffn_hidden_size);
  };
  const auto asked = sizes(read_model_config(o.directory)), has = sizes(config);
  if (asked == has) return;
  throw UsageError(
      fmt::format("--model {} ({}) contradicts the checkpoint {}, whose model ({}) goes on: leave the option out, or "
                  "start a new run "
                  "under another --run-name",
                  o.model, asked, checkpoint.string(), has));
}

/// Refuses model options that contradict the checkpoint, which decides the model.
void check_model_options(const OptionTable& app, const ModelOptions& o, const ModelConfig& config,
                         const std::filesystem::path& checkpoint) {
  if (o.model != "mingpt") return check_model(o, config, checkpoint);
  const auto check = [&](const char* name, std::int64_t asked, std::int64_t has) {
    if (app.get_option(name)->count() == 0 || asked == has) return;
    throw UsageError(
        fmt::format("{} {} contradicts the checkpoint {}, whose model has {}: leave the option out, or "
                    "start a new run under another --run-name",
                    name, asked, checkpoint.string(), has));
  };
  check("--num-layers", o.num_layers, config.num_layers);
  check("--num-heads", o.num_heads, config.num_heads);
  check("--embed-size", o.embed_size, config.embed_size);
  check("--vocab-size", o.vocab_size, config.vocab_size);
  if (o.ffn_hidden_size != 0) check("--ffn-hidden-size", o.ffn_hidden_size, config.ffn_hidden_size);
}

/// "layout" of a run whose sources are read in different ways.
constexpr const char* kMixedLayout = "mixed";

void set_if_open(OptionTable& app, const char* name, const std::vector<std::string>& words) {
  auto* option = app.get_option(std::string("--") + name);
  if (option->count() > 0) return;
  for (const auto& word : words) option->add_result(word);
  option->run_callback();
}

/// Refuses a change of packing, because a run counts the rows it has read: packed rows, or one text per row.
void check_packing(const OptionTable& app, bool asked, const nlohmann::json& saved,
                   const std::filesystem::path& checkpoint) {
  const bool was = saved.value("pack", std::string("false")) == "true";
  if (app.get_option("--pack")->count() == 0 || asked == was) return;
  throw UsageError(fmt::format(
      "--{} contradicts the checkpoint {}, whose run {} its texts and counts what it has read "
      "in {}: leave the option out, or start a new run under another --run-name",
      asked ? "pack" : "no-pack", checkpoint.string(), was ? "packed" : "padded", was ? "packed rows" : "texts"));
}

/// Refuses a change between stream and documents, because a run counts the rows it has read, and of --val-split.
/// Earlier versions kept no layout, and took all texts as documents.
void check_layout(OptionTable& app, const RunManifest& manifest, const std::filesystem::path& checkpoint) {
  const auto given = [&](const char* option) { return app.get_option(option)->count() > 0; };
  const auto was = manifest.data.value("layout", std::string("documents"));
  for (const auto* asked : {"stream", "documents"}) {
    const auto option = std::string("--") + asked;
    // Sources that differ in this are compared one by one (lib/training/data/mixture_state.hpp).
    if (!given(option.c_str()) || was == asked || was == kMixedLayout) continue;
    throw UsageError(fmt::format(
        "{} contradicts the checkpoint {}, whose run read its texts as {}: leave the option out, or start a "
        "new run under another --run-name",
        option, checkpoint.string(), was == "stream" ? "a stream" : was));
  }
  const auto held_out = manifest.options.value("val-split", std::string());
  if (given("--val-split") && app.get_option("--val-split")->as<std::string>() != held_out) {
    throw UsageError(fmt::format(
        "--val-split contradicts the checkpoint {}, whose run {}: what was trained on would be validated on; leave the "
        "option out, or start a new run under another --run-name",
        checkpoint.string(), held_out.empty() ? "held nothing out" : "held out " + held_out));
  }
  if (!manifest.data.contains("layout") && !manifest.options.contains("stream"))
    set_if_open(app, "documents", {"true"});
}

/// \throws MissingInput
std::vector<DataSource> find_data_sources(const std::string& text) {
  auto sources = parse_data_sources(text);
  const auto settings = hub_settings(process_environment());
  for (auto& source : sources) {
    for (auto* path : {&source.path, &source.validation}) {
      if (path->empty()) continue;
      try {
        *path = find_snapshot(*path, RepoType::dataset, settings).string();
      } catch (const MissingInput& missing) {
        if (source.name.empty()) throw;
        throw MissingInput(fmt::format("--train-data, source {}: {}", source.name, told(missing)));
      }
    }
  }
  return sources;
}

/// Makes the path of each source absolute if it exists. A text that would then be read as something else stays.
std::string with_whole_sources(const std::string& text) {
  std::error_code error;
  if (std::filesystem::exists(text, error)) return saved_path(text).value_or(text);
  auto sources = parse_data_sources(text);
  for (auto& source : sources) {
    if (std::filesystem::exists(source.path, error)) source.path = saved_path(source.path).value_or(source.path);
  }
  const auto whole = data_sources_text(sources);
  const auto again = parse_data_sources(whole);
  const auto same = [](const DataSource& a, const DataSource& b) { return a.name == b.name && a.path == b.path; };
  return std::ranges::equal(again, sources, same) ? whole : text;
}

/// \throws MissingInput
std::vector<ValidationSet> find_validation_sets(const std::string& text) {
  auto sets = parse_validation_sets(text, "--val-data");
  for (auto& set : sets) {
    try {
      set.path = find_snapshot(set.path, RepoType::dataset, hub_settings(process_environment())).string();
    } catch (const MissingInput& missing) {
      throw MissingInput(fmt::format("{}{}{}", set.name.empty() ? "" : "--val-data " + set.name + ": ", told(missing),
                                     hint_about_names(set)));
    }
  }
  return sets;
}

void check_names_of_sets(const std::vector<ValidationSet>& sets) {
  std::set<std::string> names;
  for (const auto& set : sets) {
    if (set.name.empty() && sets.size() > 1)
      throw UsageError(
          fmt::format("--val-data {} stands beside the validation data of sources, which have names: give it "
                      "one, as NAME=PATH",
                      set.path));
    if (names.insert(set.name).second) continue;
    throw UsageError(
        fmt::format("two sets of validation data are called '{}': --val-data, --val-split and the "
                    "validation of a source in --train-data need names of their own",
                    set.name));
  }
}

/// Makes each path absolute if it exists. A folder whose absolute name would parse as NAME=PATH stays as it is.
std::string with_whole_paths(const std::string& text) {
  auto sets = parse_validation_sets(text, "--val-data");
  std::error_code error;
  for (auto& set : sets) {
    if (std::filesystem::exists(set.path, error)) set.path = saved_path(set.path).value_or(set.path);
  }
  const auto whole = validation_sets_text(sets);
  try {
    return parse_validation_sets(whole) == sets ? whole : text;
  } catch (const RequestError&) {
    return text;
  }
}

/// Checks a path that the checkpoint keeps and names the checkpoint in the message. \throws MissingInput
void check_saved_path(const std::string& name, PathKind path, const std::string& text,
                      const std::filesystem::path& checkpoint) {
  // A wrong chat template has an error message of its own.
  // A wrong name of a task, too.
  if (path == PathKind::none || path == PathKind::chat_template || path == PathKind::tasks || text.empty() ||
      text == kBuiltInTokenizer)
    return;
  try {
    if (path == PathKind::validation_sets) {
      find_validation_sets(text);
    } else if (path == PathKind::data_sources) {
      find_data_sources(text);
    } else {
      find_snapshot(text, path == PathKind::model ? RepoType::model : RepoType::dataset,
                    hub_settings(process_environment()));
    }
  } catch (const MissingInput& missing) {
    throw MissingInput(fmt::format(
        "the run of {} had --{} {}, which is not here{}: give --{} anew ({})", checkpoint.string(), name, text,
        std::filesystem::path(text).is_relative() ? " (seen from where it was started)" : "", name, told(missing)));
  }
}

/// Whether an option's values are texts that may contain blanks, so that they are kept as a JSON list.
bool holds_texts(const CLI::Option& option) {
  return option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
}

/// Gives an option the value that a checkpoint keeps as text. \throws FormatError if the option does not take the value
void give_saved_value(CLI::Option& option, const std::string& text, const std::filesystem::path& checkpoint) try {
  if (holds_texts(option)) {
    for (const auto& word : parse_json(text, option.get_name())) option.add_result(word.get<std::string>());
  } else if (option.get_expected_max() > 1) {
    std::istringstream words(text);
    for (std::string word; words >> word;) option.add_result(word);
  } else {
    option.add_result(text);  // not split, because a path may contain spaces
  }
  option.run_callback();
} catch (const std::exception&) {  // an exception of CLI11, of this program or of the JSON library
  throw FormatError(fmt::format("{}: its run had --{} '{}', which cannot be", checkpoint.string(),
                                option.get_lnames().front(), text));
}

/// Takes over the learning rate of a trainer's checkpoint.
void take_trainers_rate(OptionTable& app, const Checkpoint& checkpoint) {
  if (checkpoint.source().info().trainer.empty()) return;
  if (const auto rate = checkpoint.learning_rate()) set_if_open(app, "lr", {fmt::format("{}", *rate)});
}

/// Takes over the settings of existing adapters. \param owner  owner of the adapters, for the message
void take_adapter(TrainOptions& options, const LoraConfig& lora, const std::string& owner) {
  auto& asked = options.sharding.lora;
  if (asked.enabled() && asked.rank != lora.rank) {
    throw UsageError(fmt::format("--lora-rank {} contradicts {}, whose adapters have {}: leave the option out",
                                 asked.rank, owner, lora.rank));
  }
  asked = lora;
}

/// Takes over the quantization of existing weights. \param owner  owner of the weights, for the message
void take_quantization(TrainOptions& options, const QuantizeConfig& stored, const std::string& owner) {
  auto& asked = options.sharding.quantize;
  if (asked.double_quant && !stored.double_quant)
    throw UsageError(fmt::format("--double-quant contradicts {}, which has {}: leave the option out", owner,
                                 quantization_text(stored)));
  asked = stored;
}

bool is_recorded(const CLI::Option& option) {
  return option.get_configurable() && !option.get_lnames().empty() && !option.get_group().empty();
}

/// Returns the given options of one kind whose value is not the default: text by long name. Paths are absolute.
std::map<std::string, std::string> given_options(const OptionTable& app, AtRestart kind) {
  std::map<std::string, std::string> found;
  for (const auto* option : app.get_options()) {
    const auto& facts = app.facts(option);
    if (option->count() == 0 || facts.at_restart != kind || !is_recorded(*option)) continue;
    auto text = fmt::format("{}", fmt::join(option->reduced_results(), " "));
    if (text == option->get_default_str()) continue;
    if (facts.path != PathKind::none) text = saved_path(text).value_or(text);
    found[option->get_lnames().front()] = text;
  }
  return found;
}

/// "--batch-size 2", "--cpu-offload", "--forward-prefetch=false"
std::string words_of_option(const CLI::Option& option, const std::string& text) {
  const auto name = "--" + option.get_lnames().front();
  const bool is_flag = option.get_expected_max() == 0;
  if (is_flag && text == "true") return name;
  // After a blank, a value that begins with a dash would be taken for an option.
  return name + (is_flag || text.starts_with('-') ? "=" : " ") + shell_word(text);
}

/// \throws FormatError for an adapter that cannot be trained on
LoraConfig trainable_adapter(const std::filesystem::path& adapter, const TrainOptions& options) {
  auto config = read_model_config(options.model.directory);
  if (const auto scores = config.has_scores() ? 0 : scores_of_adapter(adapter); scores > 0) {
    const auto head = options.objective.head;
    if (head != (scores == 1 ? HeadKind::reward : HeadKind::classify))
      throw UsageError(fmt::format("--adapter {} has {}: train it by --head {}", adapter.string(),
                                   scores == 1 ? "a reward" : fmt::format("the scores of {} labels", scores),
                                   scores == 1 ? "reward" : "classify"));
    const auto& labels = options.conversations.labels;
    if (!labels.empty() && std::ssize(labels) != scores)
      throw UsageError(fmt::format("--adapter {} has the scores of {} labels, and --labels names {}", adapter.string(),
                                   scores, labels.size()));
    add_score_head(config, unnamed_labels(scores), -1);
  } else if (!config.has_scores() && options.objective.has_scores()) {
    throw UsageError("--adapter " + adapter.string() +
                     " is of a model that writes, and --head asks for another one: leave one of them out");
  }
  auto plan = plan_adapter_of_model(adapter, config, options.sharding.quantize);
  if (plan.shares_adapter)
    throw FormatError(plan.file.string() +
                      ": head and embedding share one adapter (ensure_weight_tying), which training would part: "
                      "evaluate or merge it, or train a new one");
  return std::move(plan.lora);
}

}  // namespace

nlohmann::json collect_saved_options(OptionTable& app) {
  nlohmann::json saved = nlohmann::json::object();
  std::error_code error;
  for (const auto* option : saved_options(app)) {
    if (option->count() == 0) continue;
    const auto& name = option->get_lnames().front();
    const auto path = app.facts(option).path;
    auto text = fmt::format("{}", fmt::join(option->reduced_results(), " "));
    // Paths are kept absolute, because the run may be resumed in another folder.
    const auto kept = saved_path(text);
    if (!kept) {
      throw UsageError(
          fmt::format("--{} {}: is no UTF-8, which a checkpoint's strings must be: give it another name, or "
                      "make a link to it that has one",
                      name, printable(text)));
    }
    if (holds_texts(*option)) {
      auto texts = option->results();
      for (auto& one : texts) {
        if (path != PathKind::none && std::filesystem::exists(one, error)) one = saved_path(one).value_or(one);
      }
      saved[name] = json_text(texts);
      continue;
    }
    if (path == PathKind::validation_sets || path == PathKind::data_sources) {
      saved[name] = path == PathKind::data_sources ? with_whole_sources(text) : with_whole_paths(text);
      continue;
    }
    const bool is_path = path != PathKind::none && !(path == PathKind::chat_template && is_chat_template_name(text));
    saved[name] = is_path && std::filesystem::exists(text, error) ? *kept : text;
  }
  return saved;
}

std::map<std::string, std::string> collect_all_options(const OptionTable& app) {
  std::map<std::string, std::string> all;
  for (const auto* option : app.get_options()) {
    if (!is_recorded(*option)) continue;
    const auto given = option->count() > 0;
    const auto text = given ? fmt::format("{}", fmt::join(option->reduced_results(), " ")) : option->get_default_str();
    if (!text.empty()) all[option->get_lnames().front()] = text;
  }
  return all;
}

void apply_saved_options(OptionTable& app, TrainOptions& options, const RestartPoint& restart) {
  if (!restart.knows_run) return take_trainers_rate(app, *restart.checkpoint);
  const auto& checkpoint = restart.candidates.front();
  const auto& manifest = restart.manifest;
  check_model_options(app, options.model, manifest.config, checkpoint);
  const auto& saved = manifest.options;
  check_packing(app, options.pack, saved, checkpoint);
  check_layout(app, manifest, checkpoint);
  const auto given = [&](const char* option) { return app.get_option(option)->count() > 0; };
  const bool steps_given = given("--max-steps") || given("--max-epochs");
  const bool freezing_given = given("--freeze") || given("--train-only");
  const bool other_child =
      given("--child-tuning") && parse_value(kChildTunings, saved.value("child-tuning", std::string("off")),
                                             "--child-tuning") != options.optimizer.child_tuning.mode;
  const bool other_optimizer =
      given("--optimizer") &&
      optimizer_type(saved.value("optimizer", std::string("adamw"))).name != options.optimizer.kind;
  const bool other_schedule =
      given("--lr-schedule") && parse_value(kLrShapes, saved.value("lr-schedule", std::string("constant")),
                                            "--lr-schedule") != options.schedule.shape;
  const bool other_objective =
      given("--objective") && parse_value(kObjectiveNames, saved.value("objective", std::string("next-token")),
                                          "--objective") != options.objective.kind;
  const bool other_head = given("--head") && parse_value(kHeadNames, saved.value("head", std::string("next-token")),
                                                         "--head") != options.objective.head;
  // Whether values that depend on an option are of no use, because the job chooses something else there. An option that
  // is not listed makes them useless if the job gives the option.
  const std::map<std::string_view, std::function<bool()>> is_useless{
      {"optimizer", [&] { return other_optimizer; }},
      {"lr-schedule", [&] { return other_schedule; }},
      {"child-tuning", [&] { return other_child; }},
      {"objective", [&] { return other_objective; }},
      {"head", [&] { return other_head; }},
      {"max-steps", [&] { return steps_given; }},
      {"freeze", [&] { return freezing_given; }},
      {"val-chess", [&] { return options.validation.games.data.empty(); }},
      {"val-tasks", [&] { return options.validation.tasks.names.empty(); }},
      {"sample-prompt", [&] { return !trains(options); }},
      {"patience", [&] { return options.validation.patience == 0; }}};
  for (auto* option : saved_options(app)) {
    const auto& name = option->get_lnames().front();
    const auto& facts = app.facts(option);
    if (!saved.contains(name) || option->count() > 0) continue;
    if (!facts.depends_on.empty()) {
      const auto listed = is_useless.find(facts.depends_on);
      if (listed != is_useless.end() ? listed->second() : given(("--" + std::string(facts.depends_on)).c_str()))
        continue;
    }
    const auto text = saved[name].get<std::string>();
    check_saved_path(name, facts.path, text, checkpoint);
    give_saved_value(*option, text, checkpoint);
  }
  if (manifest.data.contains("adapter")) {
    auto lora = adapter_config_from_json(manifest.data["adapter"], checkpoint.string()).lora;
    take_vocabulary(manifest.data, lora);
    take_adapter(options, lora, "the checkpoint " + checkpoint.string());
  }
  if (manifest.data.contains("quantize")) {
    take_quantization(options, quantization_from_json(manifest.data["quantize"], checkpoint.string()),
                      "the checkpoint " + checkpoint.string());
  }
  const bool batch_given =
      app.get_option("--total-batch-size")->count() + app.get_option("--gradient-accumulation-steps")->count() > 0;
  if (saved.contains("total-batch-size") && !batch_given) {
    give_saved_value(*app.get_option("--total-batch-size"), saved["total-batch-size"].get<std::string>(), checkpoint);
    options.total_batch_restored = options.total_batch_size > 0;
  }
}

void apply_fine_tuning_defaults(OptionTable& app, const TrainOptions& options) {
  const auto& betas = optimizer_type(options.optimizer.kind).betas;
  if (!betas.empty()) set_if_open(app, "betas", betas);
  if (options.model.model == "mingpt") return;
  // A user who chooses warm-up or schedule chooses both.
  const bool own_schedule = app.get_option("--warmup-steps")->count() + app.get_option("--lr-schedule")->count() > 0;
  // The defaults of the chess fine-tune: torch.optim.AdamW's betas and weight decay, a linear schedule with a tenth of
  // warm-up, and its data order's seed.
  set_if_open(app, "lr", {"1e-5"});
  if (!own_schedule) set_if_open(app, "warmup-ratio", {"0.1"});
  set_if_open(app, "lr-schedule", {"linear"});
  set_if_open(app, "betas", {"0.9", "0.999"});
  set_if_open(app, "weight-decay", {"0.01"});
  set_if_open(app, "decay-all", {"true"});
  set_if_open(app, "seed", {"42"});
}

void resolve_names(TrainOptions& options) {
  const auto settings = hub_settings(process_environment());
  auto& model = options.model;
  if (model.model != "mingpt") {
    std::error_code error;
    if (model.model.find('/') == std::string::npos && !std::filesystem::exists(model.model, error)) {
      throw MissingInput("--model " + model.model +
                         ": No such file or directory: give mingpt, a directory with config.json and safetensors, or "
                         "ORG/NAME in the Hugging Face cache" +
                         nearby_words(model.model));
    }
    model.directory = find_snapshot(model.model, RepoType::model, settings);
    if (!options.dry_run && options.restart_checkpoint.empty()) refuse_config_alone(model.model, model.directory);
    refuse_adapter_alone(model.directory);
    if (const auto stored = stored_quantization(model.directory))
      take_quantization(options, *stored, "--model " + model.model);
  }
  if (auto& reference = options.objective.reference; !reference.empty() && !reference.ends_with(".npy"))
    reference = find_snapshot(reference, RepoType::model, settings);
  if (!model.tokenizer.empty() && model.tokenizer != kBuiltInTokenizer) {
    model.tokenizer = find_snapshot(model.tokenizer, RepoType::model, settings);
  }
  if (!options.adapter.empty()) {
    // Without base weights there is no run; that error is reported later.
    const auto lora = model.directory.empty() ? read_adapter_config(options.adapter).lora
                                              : trainable_adapter(options.adapter, options);
    take_adapter(options, lora, "--adapter " + options.adapter);
  }
  options.sources = find_data_sources(options.train_data);
  options.val_sets = find_validation_sets(options.val_data);
  if (options.val_split > 0) {
    if (!options.val_sets.empty())
      throw UsageError(
          "--val-split holds a part of --train-data out for validation, and --val-data names other data: give one of "
          "them");
    for (const auto& source : options.sources) options.val_sets.push_back({source.name, source.path});
  }
  for (const auto& source : options.sources) {
    if (!source.validation.empty()) options.val_sets.push_back({source.name, source.validation});
  }
  check_names_of_sets(options.val_sets);
  auto& games = options.validation.games.data;
  if (!games.empty()) games = find_snapshot(games, RepoType::dataset, settings).string();
}

std::map<std::string, std::string> collect_options_of_job(const OptionTable& app) {
  return given_options(app, AtRestart::job);
}

std::vector<std::string> collect_repeated_words(const OptionTable& app) {
  std::vector<std::string> words;
  for (const auto kind : {AtRestart::job, AtRestart::printing}) {
    for (const auto& [name, text] : given_options(app, kind))
      words.push_back(words_of_option(*app.get_option("--" + name), text));
  }
  return words;
}

std::vector<std::string> collect_given_words(const OptionTable& app, const std::set<std::string>& left_out) {
  std::vector<std::string> words;
  for (const auto* option : app.get_options()) {
    if (option->count() == 0 || !is_recorded(*option) || left_out.contains(option->get_lnames().front())) continue;
    const auto results = option->reduced_results();
    if (results.size() < 2 || option->get_delimiter() != '\0') {
      words.push_back(words_of_option(*option, fmt::format("{}", fmt::join(results, ","))));
      continue;
    }
    words.push_back("--" + option->get_lnames().front());  // "--betas 0.9 0.95"
    for (const auto& result : results) words.push_back(shell_word(result));
  }
  return words;
}

std::vector<std::string> options_left_behind(const OptionTable& app, const RestartPoint& restart) {
  std::vector<std::string> words;
  const auto of_job = restart.manifest.data.find("options_of_job");
  if (!restart.knows_run || of_job == restart.manifest.data.end() || !of_job->is_object()) return words;
  for (const auto& [name, value] : of_job->items()) {
    const auto* option = app.get_option_no_throw("--" + name);
    if (option == nullptr || option->count() > 0 || !value.is_string()) continue;
    words.push_back(words_of_option(*option, value.get<std::string>()));
  }
  return words;
}

}  // namespace fsdp
