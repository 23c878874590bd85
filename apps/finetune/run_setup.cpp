#include "apps/finetune/run_setup.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/common/check_options.hpp"
#include "apps/finetune/final_exports.hpp"
#include "apps/finetune/reports/left_out.hpp"
#include "apps/finetune/start/plan_head.hpp"
#include "apps/finetune/validation/validation.hpp"
#include "apps/finetune/validation/validation_games.hpp"
#include "apps/finetune/validation/validation_samples.hpp"
#include "apps/finetune/validation/validation_tasks.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/bf16/verdict.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/templates/chat/chat_template.hpp"
#include "lib/tokenizers/files/new_tokens.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/data/head_targets.hpp"
#include "lib/training/data/prepare_data.hpp"
#include "lib/training/data/scan_ids.hpp"
#include "lib/training/data/token_cache.hpp"
#include "lib/training/run/saved_path.hpp"

namespace fsdp::detail {
namespace {

/// Refuses emulated bf16 on a GPU, where it costs a multiple of float32's time, and warns on a CPU, where it can save
/// memory. Looks up the device without measuring; fsdp-bf16check measures.
void check_bf16(ProcessGroup& world, const TrainOptions& options, const DeviceChoice& device, const Logger& log) {
  if (make_policy(options.sharding).precision.param_dtype != at::kBFloat16) return;
  Bf16Answer answer;
  if (device.backend != nullptr) {
    const auto info = device.backend->info(device.device.index());
    answer = bf16_support(&info);
  } else {
    answer = bf16_support(nullptr);
  }
  std::string problem;
  if (answer.verdict != Bf16Verdict::native) problem = device.description + ": " + answer.reason;
  const bool refuse = device.backend != nullptr && !options.sharding.allow_emulated_bf16;
  const auto found = first_problem(world, problem);
  if (!found) return;
  const auto first = fmt::format("rank {}, {}", found->rank, found->text);
  if (any_rank(world, refuse && !problem.empty())) {
    throw UsageError(
        "--precision bf16 would be emulated: " + first +
        "; use float32 or fp16, other nodes (fsdp-bf16check names the bad ones), or --allow-emulated-bf16");
  }
  if (world.rank() != 0) return;
  log.warning((device.backend != nullptr ? "bf16 is emulated here and will be slow: "
                                         : "bf16 saves memory here, but no time: ") +
              first);
}

/// Chooses the given tokenizer, else the tokenizer of the continued run, of the adapter or of the weights, else
/// GPT-2's.
TokenizerChoice choose_tokenizer(const ModelOptions& model, const std::filesystem::path& adapter,
                                 const ModelConfig& config, const std::optional<RestartPoint>& restart) {
  TokenizerChoice choice;
  choice.name = model.tokenizer;
  OwnTokenizer of_run;
  if (restart && restart->knows_run) of_run = tokenizer_of(restart->candidates.front(), restart->manifest.data);
  if (restart && restart->knows_run && restart->manifest.data.value("added_tokens", false))
    choice.name = of_run.name.empty() ? of_run.gone : of_run.name;
  const bool is_chosen = !of_run.name.empty() && of_run.name != kBuiltInTokenizer;
  if (choice.name.empty() && is_chosen) choice.name = of_run.name;
  if (choice.name.empty()) choice.name = tokenizer_of(model.directory, nullptr, adapter).name;
  if (choice.name.empty()) choice.name = of_run.name;
  // The saved name "gpt2" may have been the default, so it does not count as sure.
  choice.is_sure = !choice.name.empty() && (choice.name != kBuiltInTokenizer || !model.tokenizer.empty());
  if (choice.name.empty() && facts_of(config).has_built_in_tokenizer) choice.name = kBuiltInTokenizer;
  if (!choice.name.empty()) choice.tokenizer = open_tokenizer(choice.name);
  return choice;
}

/// Adds the tokens of --add-tokens to the tokenizer, which then lies in a hidden folder of the run, and rows for them
/// to the model. A run that goes on has them already. Collective.
void add_tokens(ProcessGroup& world, RunSetup& setup, const Logger& log) {
  const auto& options = setup.options;
  const auto& model = options.model;
  setup.lora = options.sharding.lora;
  setup.has_new_tokens =
      setup.restart && setup.restart->knows_run && setup.restart->manifest.data.value("added_tokens", false);
  if (setup.lora.vocabulary > 0) setup.config.vocab_size = setup.lora.vocabulary;
  if (!model.add_tokens.empty() && !(setup.restart && setup.restart->knows_run)) {
    if (setup.tokenizer.tokenizer == nullptr) throw UsageError("--add-tokens: no tokenizer is known, give --tokenizer");
    const auto before = setup.config.vocab_size;
    GrownTokenizer grown;
    run_agreed(world, [&] { grown = plan_new_tokens(model, setup.tokenizer.name, setup.config, setup.lora); });
    setup.new_tokenizer = std::make_unique<NewTokenizer>(world, setup.directory);
    setup.new_tokenizer->write(world, grown);
    setup.tokenizer.name = setup.new_tokenizer->hidden();
    run_agreed(world, [&] { setup.tokenizer.tokenizer = open_tokenizer(setup.tokenizer.name); });
    setup.tokenizer.is_sure = setup.has_new_tokens = true;
    const auto& added = grown.added;
    log.info(fmt::format("tokens    {} added{}   {} rows, before {}", added.size(),
                         added.empty() ? "" : fmt::format(" from id {} on", added.front().id), setup.config.vocab_size,
                         before));
    return;
  }
  refuse_new_tokens(setup.lora);
}

/// Opens token files, and encodes texts before, with the job's options and those of single sources.
class DataOpener {
 public:
  DataOpener(ProcessGroup& world, RunSetup& setup, const Logger& log, const std::function<bool()>& stopped)
      : world_(world),
        setup_(setup),
        options_(setup.options),
        log_(log),
        stopped_(stopped),
        limit_{options_.model.seq_len, row_positions(setup.config, options_.model.seq_len)} {}

  /// \param source  whose options are other than the job's; null: none
  TokenLoader open(const std::string& data, const std::string& option, const DataSource* source) const {
    const bool trained = option == "--train-data";
    auto texts = text_options(source);
    const auto most = texts.max_rows;
    if (!trained && options_.val_split == 0) texts.max_rows = 0;
    texts.split = {options_.val_split, !trained};
    const auto file = prepare_tokens(world_, data, texts, log_, stopped_);
    auto how = token_file_options(texts.layout, texts.token_type, asked_column(texts.field, texts.conversations.form));
    how.checked_later = true;  // scan_ids() does
    TokenLoader loader(file, limit_, setup_.config.vocab_size, trained || options_.val_split > 0 ? most : 0, how);
    scan_ids(world_, loader.tokens(),
             {.records = std::min(loader.num_records(), loader.tokens().num_records()),
              .vocab_size = setup_.config.vocab_size,
              .directory = texts.directory,
              .reads_large = !options_.dry_run,
              .quiet = texts.quiet},
             log_, stopped_);
    if (options_.val_split > 0 && loader.is_stream()) loader.keep_part(texts.split);
    check_targets(loader, setup_.config, setup_.config.pad_token_id, option + " " + data);
    if (loader.has_preferences() != options_.objective.has_preferences()) {
      throw UsageError(
          loader.has_preferences()
              ? option + " " + data +
                    " holds preferences: --objective dpo, orpo, simpo or cpo learns them, or --head reward"
              : option + " " + data +
                    " holds no preferences, which --objective and --head ask for: samples with 'chosen' and "
                    "'rejected'");
    }
    if (loader.is_judged() != options_.objective.judges_answers()) {
      throw UsageError(loader.is_judged()
                           ? option + " " + data + " holds judged answers: --objective kto learns them"
                           : option + " " + data +
                                 " holds no judged answers, which --objective kto asks for: fsdp-download tokens "
                                 "--judged writes them");
    }
    if (loader.is_judged() && !loader.has_mismatched() && plan_objective(options_)->needs_divergence()) {
      throw UsageError(option + " " + data +
                       " has answers to one prompt alone, and --objective kto measures them by answers to others: give "
                       "more prompts, or --kto-loss apo_zero_unpaired");
    }
    const auto& cut = options_.conversations;
    if (file == data && (cut.max_prompt_length > 0 || cut.truncation != Truncation::keep_start))
      throw UsageError("--max-prompt-length and --truncation cut texts: " + data +
                       " is a token file, so give them to fsdp-download tokens");
    if (const auto left_out = loader.samples_left_out(); left_out > 0) {
      const auto samples = loader.is_judged() ? format_count_of(loader.num_records(), "answer")
                                              : format_count_of(loader.num_records() / 2, "preference");
      log_.warning(fmt::format("{} of {} of {} are left out: a side is cut before its first target",
                               format_count(left_out), samples, data),
                   Remedy::of_seq_len);
    }
    const auto chat_template = loader.tokens().notes().chat_template;
    if (trained && !chat_template.empty()) setup_.chat_template = chat_template;
    run_agreed(world_, [&] {
      if (world_.rank() == 0) loader.require_targets(loader.num_records());
    });
    if (setup_.device.backend != nullptr) loader.pad_to(kGpuLengthStep);
    // Validation rows without document boundaries are used as they are.
    const bool alone = trained && options_.sources.size() == 1;
    if (options_.pack && !loader.is_stream() && (alone || loader.has_documents()))
      loader.pack({options_.seed, !options_.no_shuffle});
    const bool takes_beginnings = texts.layout == TextLayout::documents;
    run_agreed(world_, [&] { refuse_most_left_out(setup_, loader, option, data, takes_beginnings); });
    return loader;
  }

 private:
  TextOptions text_options(const DataSource* source) const {
    TextOptions texts;
    texts.field = options_.data_field;
    texts.conversations = options_.conversations;
    texts.conversations.labels = setup_.config.labels;
    texts.conversations.padding_id = setup_.config.pad_token_id;
    texts.layout = asked_layout(options_.stream, options_.documents);
    texts.token_type = options_.token_type;
    texts.max_rows = options_.max_rows;
    texts.directory = std::filesystem::path(options_.out_dir) / kTokenCacheName;
    texts.tokenizer_name = setup_.tokenizer.name;
    texts.tokenizer = setup_.tokenizer.tokenizer.get();
    texts.model = &setup_.config;
    texts.check_origin = !options_.allow_other_tokenizer;
    texts.tokenizer_is_sure = setup_.tokenizer.is_sure;
    texts.quiet = options_.runtime.quiet;
    texts.row_inputs = limit_.row_inputs();
    if (source == nullptr) return texts;
    if (!source->field.empty()) texts.field = source->field;
    texts.conversations.form = source->form.value_or(texts.conversations.form);
    texts.conversations.chat_template = source->chat_template.value_or(texts.conversations.chat_template);
    texts.conversations.train_on = source->train_on.value_or(texts.conversations.train_on);
    texts.layout = source->layout.value_or(texts.layout);
    if (source->token_type) texts.token_type = source->token_type;
    texts.max_rows = source->max_rows.value_or(texts.max_rows);
    return texts;
  }

  ProcessGroup& world_;
  RunSetup& setup_;
  const TrainOptions& options_;
  const Logger& log_;
  const std::function<bool()>& stopped_;
  SequenceLimit limit_;
};

/// Whether a run with the sources of a checkpoint goes on in their places. Not where one source that was given no name
/// has another file than one of the checkpoint, or fewer rows, of which check_rows_of_restart() tells.
bool takes_places(const TrainOptions& options, const SavedMixture& saved, const std::vector<TrainingSource>& sources) {
  if (saved.sources.size() != 1 || sources.size() != 1 || !options.sources.front().name.empty()) return true;
  const auto& was = saved.sources.front();
  const auto& is = sources.front();
  return was.name == is.name && is.rows.num_rows() >= was.rows;
}

/// Begins with the first samples of the sources, or where those of a checkpoint stand.
void order_sources(ProcessGroup& world, RunSetup& setup, std::vector<TrainingSource> sources,
                   const std::optional<RestartPoint>& point, const Logger& log) {
  const auto& options = setup.options;
  MixtureOrder::Options order{
      .end = options.mix_end, .seed = options.seed, .shuffle = !options.no_shuffle, .first_position = 0};
  setup.continued = {};
  for (auto& source : sources) source.place = {};  // of a newer checkpoint
  run_agreed(world, [&] {
    if (!point || !point->knows_run || point->manifest.state.samples == 0) return;
    const auto kept = point->manifest.data.find("mixture");
    if (kept == point->manifest.data.end()) return;  // an older program's checkpoint
    const auto saved = mixture_from_text(*kept, point->candidates.front().string());
    if (!takes_places(options, saved, sources)) return;
    setup.continued = continue_mixture(saved, sources, options.mix_end);
    order.first_position = point->manifest.state.samples;
    order.same_rule = setup.continued.same_rule;
  });
  setup.contents.clear();
  for (const auto& source : sources) {
    const auto& rows = source.rows;
    setup.contents.push_back(text_of_root(world, [&] { return content_of(rows, rows.num_records()); }));
  }
  run_agreed(world, [&] { setup.train_data.emplace(std::move(sources), order); });
  if (!setup.continued.changes.empty()) log.info(fmt::format("mixture   {}", fmt::join(setup.continued.changes, "; ")));
}

void open_data(ProcessGroup& world, RunSetup& setup, const Logger& log, const std::function<bool()>& stopped) {
  const auto& options = setup.options;
  const DataOpener opener(world, setup, log, stopped);
  const auto source_of = [&](const std::string& name) -> const DataSource* {
    if (name.empty() && options.val_split == 0) return nullptr;
    const auto found = std::ranges::find(options.sources, name, &DataSource::name);
    return found == options.sources.end() ? nullptr : &*found;
  };
  const std::string val_option = options.val_split > 0 ? "--val-split of" : "--val-data";
  for (const auto& set : options.val_sets) {
    setup.validation.push_back(
        {set.name, opener.open(set.path, val_option + (set.name.empty() ? "" : " " + set.name), source_of(set.name))});
  }
  if (!trains(options)) return;
  std::vector<TrainingSource> sources;
  for (const auto& source : options.sources) {
    auto rows = opener.open(source.path, "--train-data", &source);
    sources.push_back({source.name.empty() ? name_of_source(source.path) : source.name, source.path, std::move(rows)});
  }
  if ((options.objective.has_preferences() || options.objective.judges_answers()) && sources.size() > 1)
    throw UsageError(
        "--objective with preferences or judged answers reads one source: put them into one file or folder");
  weigh_sources(options.sources, options.mix_temperature, sources);
  // The order of the words on a command line decides nothing: of sources that are equally due the first by name is
  // next.
  std::ranges::sort(sources, {}, &TrainingSource::name);
  order_sources(world, setup, std::move(sources), setup.restart, log);
}

/// The text of the training data's chat template, which its name leads to, or which the continued run kept; empty for
/// none and for the tokenizer's own. Collective.
std::string template_text(ProcessGroup& world, const RunSetup& setup, const Logger& log) {
  const auto& name = setup.chat_template;
  if (name.empty() || name == kOwnTemplate) return "";
  return text_of_root(world, [&] {
    try {
      return chat_template_source(name);
    } catch (const Error& error) {
      std::string kept;
      if (setup.restart && setup.restart->knows_run)
        kept = setup.restart->manifest.data.value("chat_template", std::string());
      if (kept.empty())
        log.warning(fmt::format("the chat template of --train-data does not go along with the model: {}", error.what()),
                    error.advice());
      return kept;
    }
  });
}

void plan_length(RunSetup& setup) {
  const auto& options = setup.options;
  setup.total_steps = 1;
  setup.total_samples = std::numeric_limits<std::int64_t>::max();
  if (setup.train_data) {
    const auto rows = setup.train_data->num_rows();
    setup.total_steps = plan_steps(options, rows, setup.batches.rows_per_step);
    if (options.max_steps <= 0)
      setup.total_samples = static_cast<std::int64_t>(std::llround(options.max_epochs * static_cast<double>(rows)));
    if (options.mix_end == MixEnd::stop) {
      const auto per_step = setup.batches.rows_per_step;
      setup.total_samples = std::min(setup.total_samples, rows);
      setup.total_steps = std::min(setup.total_steps, (rows + per_step - 1) / per_step);
    }
    setup.save_every = options.save_every.in_steps(rows, setup.batches.rows_per_step);
    setup.eval_every = options.eval_every.in_steps(rows, setup.batches.rows_per_step);
    setup.tasks_every = options.validation.tasks.every.in_steps(rows, setup.batches.rows_per_step);
  }
  setup.schedule = plan_schedule(options, setup.total_steps);
}

/// The path of one source; of a mixture the text of --train-data.
std::string named_data(const TrainOptions& options) {
  return options.sources.size() == 1 ? options.sources.front().path : options.train_data;
}

/// Warns of data of another name with as many rows: the place in the data is kept, whose rows hold other texts. A copy
/// in another folder has the name of its original.
void log_other_data(const RunSetup& setup, const RunManifest& saved, const Logger& log) {
  const std::filesystem::path was = saved.data.value("train", std::string()), is = named_data(setup.options);
  if (was.empty() || was.filename() == is.filename()) return;
  log.warning(fmt::format("--train-data is {} here, and the run of the checkpoint read {}: it goes on at sample {}",
                          is.string(), was.string(), saved.state.samples));
}

/// Warns of another order of the same rows within an epoch: the position in the order is kept, so the rows that the
/// checkpoint's run has read are not those before it here.
void log_other_order(const RunSetup& setup, const RunManifest& saved, const Logger& log) {
  const auto order = [](const nlohmann::json& options) {
    if (options.value("no-shuffle", std::string("false")) == "true") return std::string("--no-shuffle");
    return "--seed " + options.value("seed", std::to_string(TrainOptions().seed));
  };
  const auto was = order(saved.options), is = order(setup.saved_options);
  const auto rows = setup.train_data->num_rows(), read = saved.state.samples % rows;
  const bool between_epochs = !setup.train_data->is_mixture() && read == 0;
  if (was == is || between_epochs) return;
  log.warning(fmt::format(
      "{} gives another order of the data than {} of the checkpoint's run, which has read {} of {} samples of "
      "its epoch: until that epoch ends some of them come again, and as many others not at all",
      is, was, read, rows));
}

/// Refuses to continue with other packed rows: the position in the data is a row number, and other rows hold other
/// texts. Warns of another number of rows or texts, and of other data.
/// \throws UsageError
void check_rows_of_restart(const RunSetup& setup, const Logger& log) {
  if (!setup.restart || !setup.train_data) return;
  const auto& saved = setup.restart->manifest;
  const auto rows = saved.data.find("rows");
  if (setup.train_data->first_position() > 0) return log_other_order(setup, saved, log);
  if (saved.state.samples == 0 || rows == saved.data.end() || !rows->is_number_integer()) return;
  if (rows->get<std::int64_t>() == setup.train_data->num_rows()) {
    log_other_data(setup, saved, log);
    return log_other_order(setup, saved, log);
  }
  if (!setup.train_data->is_packed() && !setup.train_data->is_stream()) {
    log.warning(
        fmt::format("--train-data has {} rows here, and the run of the checkpoint had {}: is --train-data or "
                    "--max-rows another one?",
                    setup.train_data->num_rows(), rows->get<std::int64_t>()));
    return;
  }
  throw UsageError(fmt::format(
      "the checkpoint stands at row {} of {}, and this --train-data with this --seq-len makes {}: texts "
      "would be repeated and others left out; leave both as they were, or start a new run under another --run-name",
      saved.state.samples, rows->get<std::int64_t>(), setup.train_data->num_rows()));
}

}  // namespace

CudaGraphs RunSetup::cuda_graphs() const {
  const auto asked = options.sharding.cuda_graphs;
  const bool many_lengths = train_data && train_data->has_many_lengths();
  return asked == CudaGraphs::automatic && many_lengths ? CudaGraphs::off : asked;
}

void go_back_in_sources(ProcessGroup& world, RunSetup& setup, const std::optional<RestartPoint>& taken,
                        const Logger& log) {
  if (!setup.train_data || setup.train_data->first_position() == 0) return;
  if (taken->manifest.state.samples == setup.train_data->first_position()) return;
  order_sources(world, setup, setup.train_data->take_sources(), taken, log);
  plan_length(setup);  // the end of a mixture may have moved
}

bool begins_a_run(const RunSetup& setup, const std::optional<RestartPoint>& taken) {
  if (!taken) return true;
  if (taken->manifest.state.step > 0) return false;
  return !path_below(taken->candidates.front(), setup.checkpoints());
}

RunSetup set_up_run(ProcessGroup& world, const RunStart& start, const TrainOptions& options,
                    const nlohmann::json& saved_options, const Logger& log) {
  RunSetup setup(options, saved_options, start.restart);
  const auto node = world.split_by_node();
  setup.ranks_on_node = node->size();
  setup.threads = set_threads(*node, log);
  setup.device = choose_device(options.runtime.device, world, *node);
  warn_of_unused_gpus(world, setup.device, log);
  if (options.sharding.tf32) run_agreed(world, [&] { allow_tf32(setup.device); });
  check_bf16(world, options, setup.device, log);
  setup.config = plan_model(options, setup.restart);
  setup.batches = plan_batches(options, world.size());
  if (setup.batches.micro_batch_size != options.batch_size)
    log.info(
        fmt::format("batch     --batch-size {} does not fit the run's {} a step on {}: {} are taken; "
                    "--total-batch-size changes the step",
                    options.batch_size, format_count_of(setup.batches.rows_per_step, "row"),
                    format_count_of(world.size(), "rank"), setup.batches.micro_batch_size));
  check_compute_dtype(options);
  check_adapter_options(options);
  check_schedule_options(options);
  if (trains(options)) check_optimizer_options(options);
  check_game_options(options);
  check_task_options(options);
  if (options.stream && options.pack)
    throw UsageError("--stream joins texts, and --pack keeps them apart in a row: give one of them");
  if (trains(options)) setup.deciding = check_validation_options(options);
  check_final_exports(world, setup);
  if (trains(options)) run_agreed(world, [&] { setup.export_dtype = export_dtype(setup); });
  if (trains(options) && options.sources.empty())
    throw UsageError("--train-data is missing: token files, or texts in JSON Lines, Parquet, CSV or plain files");
  if (options.val_split > 0) {
    if (options.sources.empty()) throw UsageError("--val-split holds out a part of --train-data: give that");
    for (const auto& source : options.sources) {
      const auto& field = source.field.empty() ? options.data_field : source.field;
      if (is_token_file(source.path, asked_column(field, source.form.value_or(options.conversations.form))))
        throw UsageError("--val-split holds out texts, and " + source.path +
                         " is a token file: give the texts, or encode those for --val-data apart");
    }
  }
  if (!trains(options) && options.val_sets.empty() && options.prompt.empty() && options.validation.games.data.empty() &&
      options.validation.tasks.names.empty()) {
    throw UsageError(
        "--max-epochs -1 evaluates only: give --val-data, --val-chess, --val-tasks, --prompt or several of them");
  }
  if (!trains(options) && !options.validation.sample_prompts.empty())
    throw UsageError("--sample-prompt writes while a run trains: --max-epochs -1 only evaluates, give --prompt");
  if (options.sharding.offload_activations && options.sharding.checkpoint_every == 0)
    throw UsageError("--offload-activations needs --activation-checkpointing: it keeps inputs of recomputed blocks");
  if (!options.samples_file.empty() && !options.dry_run)
    throw UsageError("--samples lists the samples of a run that is not made: give --dry-run, too");
  if (options.restart_epoch.value_or(0) > 0 && !setup.restart)
    throw UsageError("--restart-epoch needs --restart-checkpoint-file, the checkpoint to go on from");
  setup.tokenizer = choose_tokenizer(options.model, options.adapter, setup.config, setup.restart);
  add_tokens(world, setup, log);
  plan_head(world, setup, log, [&start] { return start.clock.signalled(); });
  if (trains(options)) check_sample_prompts(setup);
  load_validation_games(world, setup);
  load_validation_tasks(world, setup, log);
  open_data(world, setup, log, [&start] { return start.clock.signalled(); });
  setup.template_text = template_text(world, setup, log);
  check_rows_of_restart(setup, log);
  if (trains(options)) setup.sample_prompts = sample_prompts(setup);
  plan_length(setup);
  if (setup.new_tokenizer) setup.tokenizer.name = setup.new_tokenizer->kept();
  return setup;
}

StepShape shape_of_steps(const RunSetup& setup) {
  auto shape = plan_step(setup.options, setup.batches);
  if (setup.train_data) shape.groups = setup.train_data->groups();
  return shape;
}

RunManifest manifest_of(const RunSetup& setup, const RunState& state, int world_size) {
  const auto& options = setup.options;
  RunManifest manifest;
  manifest.config = setup.config;
  manifest.state = state;
  manifest.options = setup.saved_options;
  manifest.options["decay-all"] = options.decay_all ? "true" : "false";
  manifest.options["total-batch-size"] = std::to_string(setup.batches.rows_per_step);
  manifest.data = {
      {"train", named_data(options)}, {"rows", setup.train_data->num_rows()}, {"shuffle", !options.no_shuffle}};
  const auto is_stream = [](const TrainingSource& source) { return source.rows.is_stream(); };
  const auto& sources = setup.train_data->sources();
  manifest.data["layout"] = std::ranges::all_of(sources, is_stream)    ? "stream"
                            : std::ranges::none_of(sources, is_stream) ? "documents"
                                                                       : "mixed";
  manifest.data["mixture"] =
      mixture_to_text(save_mixture(*setup.train_data, state.samples, setup.contents, setup.continued.resting));
  if (!setup.tokenizer.name.empty()) {
    const auto path = saved_path(setup.tokenizer.name);
    if (path) manifest.data["tokenizer"] = setup.tokenizer.name == kBuiltInTokenizer ? setup.tokenizer.name : *path;
  }
  if (setup.has_new_tokens) manifest.data["added_tokens"] = true;
  if (!setup.template_text.empty()) manifest.data["chat_template"] = setup.template_text;
  if (!options.of_job.empty()) manifest.data["options_of_job"] = options.of_job;
  if (!setup.reference.empty()) manifest.data["reference"] = setup.reference;
  if (!setup.export_dtype.empty()) manifest.data["weights_dtype"] = setup.export_dtype;
  if (!options.model.directory.empty()) {
    const auto path = saved_path(options.model.directory);
    if (path) manifest.data["weights"] = *path;
  } else if (setup.restart && setup.restart->knows_run) {
    const auto began_with = setup.restart->manifest.data.value("weights", std::string());
    if (!began_with.empty()) manifest.data["weights"] = began_with;
  }
  manifest.world_size = world_size;
  return manifest;
}

}  // namespace fsdp::detail
