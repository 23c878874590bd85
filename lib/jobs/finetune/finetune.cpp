#include <fmt/format.h>

#include "lib/base/text_format.hpp"
#include "lib/bf16/verdict.hpp"
#include "lib/checkpoint/import_weights.hpp"
#include "lib/eval/evaluate.hpp"
#include "lib/eval/generate.hpp"
#include "lib/jobs/finetune/finetune.hpp"
#include "lib/jobs/finetune/finetune_job.hpp"
#include "lib/mpi/agree.hpp"
#include "lib/runtime/text.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/tokenizer/open_tokenizer.hpp"
#include "lib/train/initialize.hpp"
#include "lib/train/prepare_data.hpp"

namespace fsdp {
namespace detail {

ExitCode FinetuneJob::run(nlohmann::json& report) {
  set_up();
  if (options_.dry_run) {
    report["dry_run"] = true;
    return ExitCode::ok;
  }
  if (options_.max_epochs < 0 && options_.max_steps == 0) {
    evaluate_only(report);
    generate_text();
    return ExitCode::ok;
  }
  const auto code = train(report);
  if (code == ExitCode::ok) generate_text();
  return code;
}

void FinetuneJob::set_up() {
  install_host_allocator();
  const auto node = world_.split_by_node();
  const int threads = set_threads(node->size());
  device_ = choose_device(options_.runtime.device, node->rank(), node->size());
  check_bf16();
  const bool training = options_.max_epochs >= 0 || options_.max_steps > 0;
  if (training && !options_.dry_run) {
    // Before the newest checkpoint is looked up: a job that is about to end may still save one.
    const auto takeover = std::chrono::duration<double>(options_.takeover_after_seconds);
    owner_ = RunOwner::take(world_,
                            {directory_, std::chrono::duration_cast<std::chrono::milliseconds>(takeover),
                             [this] { return signal_.received() != 0; }},
                            log_);
  }
  restart_ = find_restart(world_, options_, directory_ / "checkpoints", log_);
  config_ = plan_model(options_, restart_);
  batches_ = plan_batches(options_, world_.size());
  check_final_outputs();
  if (training && options_.train_data.empty())
    throw UsageError("--train-data is missing: token files, or texts in JSON Lines, Parquet, CSV or plain files");
  if (!training && options_.val_data.empty() && options_.prompt.empty()) {
    throw UsageError("--max-epochs -1 evaluates only: give --val-data, --prompt or both");
  }
  open_tokenizer_for_texts();
  open_data(training);
  const auto schedule =
      plan_schedule(options_, training ? plan_steps(options_, train_loader_->num_rows(), batches_.rows_per_step) : 1);
  if (options_.dry_run) {
    (void)plan_optimizer(options_);  // what it refuses
    plan_runtime(node->size());
    describe(device_, node->size(), threads);
    say_whether_weights_are_there();
    return;
  }
  runtime_ = std::make_unique<ModelRuntime>(world_, config_, options_.sharding, device_, batches_.accumulation_steps);
  if (!options_.runtime.trace_file.empty()) runtime_->engine().observers().add(trace_);
  if (training) {
    const TrainerOptions trainer_options{batches_,
                                         schedule,
                                         plan_optimizer(options_),
                                         options_.decay_all,
                                         options_.clip_grad_norm,
                                         options_.seed,
                                         !options_.no_shuffle};
    trainer_ = std::make_unique<Trainer>(*runtime_, *train_loader_, trainer_options);
  }
  describe(device_, node->size(), threads);
  load_weights();
}

/// bf16 in software costs a multiple of float32's time: on a GPU that is a mistake, on a CPU it may be meant to save
/// memory. fsdp-bf16check measures what this only looks up.
void FinetuneJob::check_bf16() {
  if (make_policy(options_.sharding).precision.param_dtype != at::kBFloat16) return;
  Bf16Answer answer;
  if (device_.backend != nullptr) {
    const auto info = device_.backend->info(device_.device.index());
    answer = bf16_support(&info);
  } else {
    answer = bf16_support(nullptr);
  }
  std::string problem;
  if (answer.verdict != Bf16Verdict::native) problem = device_.description + ": " + answer.reason;
  const bool refuse = device_.backend != nullptr && !options_.sharding.allow_emulated_bf16;
  const auto found = first_problem(world_, problem);
  if (!found) return;
  const auto first = fmt::format("rank {}, {}", found->rank, found->text);
  if (any_rank(world_, refuse && !problem.empty())) {
    throw UsageError(
        "--precision bf16 would be emulated: " + first +
        "; use float32 or fp16, other nodes (fsdp-bf16check names the bad ones), or --allow-emulated-bf16");
  }
  if (world_.rank() == 0) log_.warning("bf16 is emulated here and will be slow: " + first);
}

/// The tokenizer that was asked for, else the one of the weights or of the run that goes on, else GPT-2's.
void FinetuneJob::open_tokenizer_for_texts() {
  const auto& model = options_.model;
  tokenizer_name_ = model.tokenizer;
  if (tokenizer_name_.empty() && !model.directory.empty() && has_tokenizer(model.directory))
    tokenizer_name_ = model.directory;
  if (tokenizer_name_.empty() && restart_ && restart_->knows_run()) {
    const auto saved = restart_->manifest.data.value("tokenizer", std::string());
    if (saved == "gpt2" || has_tokenizer(saved)) tokenizer_name_ = saved;
  }
  // A run's "gpt2" may have been the default, too.
  tokenizer_is_sure_ = !tokenizer_name_.empty() && (tokenizer_name_ != "gpt2" || !model.tokenizer.empty());
  if (tokenizer_name_.empty() && config_.architecture == Architecture::mingpt) tokenizer_name_ = "gpt2";
  if (tokenizer_name_.empty()) return;
  tokenizer_ = open_tokenizer(tokenizer_name_);
}

void FinetuneJob::open_data(bool training) {
  TextOptions texts;
  texts.field = options_.data_field;
  texts.directory = directory_ / "data";
  texts.tokenizer_name = tokenizer_name_;
  texts.tokenizer = tokenizer_.get();
  texts.model = &config_;
  texts.check_origin = !options_.allow_other_tokenizer;
  texts.tokenizer_is_sure = tokenizer_is_sure_;
  texts.quiet = options_.runtime.quiet;
  const SequenceLimit limit{options_.model.seq_len, config_.block_size};
  const auto open = [&](const std::string& data) {
    const auto file = prepare_tokens(world_, data, texts, log_, [this] { return signal_.received() != 0; });
    return TokenLoader(file, limit, config_.vocab_size);
  };
  if (!options_.val_data.empty()) val_loader_.emplace(open(options_.val_data));
  texts.max_rows = options_.max_rows;
  if (training) train_loader_.emplace(open(options_.train_data));
}

void FinetuneJob::load_weights() {
  if (restart_) {
    restore();
  } else if (options_.model.directory.empty()) {
    initialize_parameters(*runtime_, options_.seed);
  } else {
    const auto start = Clock::now();
    load_safetensors_parameters(*runtime_, options_.model.directory);
    world_.barrier();
    log_.info(fmt::format("weights   {}   {:.1f} s", options_.model.directory, seconds_since(start)));
  }
}

void FinetuneJob::describe(const DeviceChoice& device, int ranks_on_node, int threads) {
  const auto& mesh = runtime_->mesh();
  log_.info(fmt::format("fsdp-finetune {}   {} on {}   {}, {} per rank   {}", FSDP_VERSION,
                        format_count_of(world_.size(), "rank"), format_count_of(mesh.num_nodes, "node"),
                        device.description, format_count_of(threads, "thread"),
                        device.backend != nullptr                                         ? "NCCL"
                        : world_.size() == 1                                              ? "no collectives"
                        : runtime_->engine().uses_peer_memory() && mesh.shard->size() > 1 ? "shared-memory collectives"
                                                                                          : "MPI collectives"));
  const auto& policy = runtime_->policy();
  log_.info(fmt::format(
      "model     {} {} x {}, {:.1f} M parameters in {}   {}{}, prefetch {}{}{}   {}", architecture_name(config_),
      config_.num_layers, config_.embed_size, static_cast<double>(num_parameters(runtime_->decoder().parameters)) / 1e6,
      format_count_of(static_cast<std::int64_t>(runtime_->num_units()), "unit"), to_string(policy.sharding),
      is_hybrid(policy.sharding) ? fmt::format(" ({} x {})", format_count_of(mesh.shard->size(), "shard"),
                                               format_count_of(mesh.replicate->size(), "replica"))
                                 : "",
      to_string(policy.backward_prefetch), policy.forward_prefetch ? " + forward" : "",
      policy.limit_all_gathers ? ", 2 gathers in flight" : "", float_type_name(policy.precision.param_dtype)));
  const auto length = train_loader_ ? train_loader_->tokens_per_row()
                                    : (val_loader_ ? val_loader_->tokens_per_row() : config_.block_size);
  if (train_loader_) {
    describe_data();
    predict_memory_use(length, ranks_on_node, threads);
  }
  describe_memory(ranks_on_node);
}

void FinetuneJob::describe_data() {
  const auto rows = train_loader_->num_rows();
  const auto length = train_loader_->tokens_per_row();
  const bool documents = train_loader_->has_documents();
  const auto steps = plan_steps(options_, rows, batches_.rows_per_step);
  log_.info(fmt::format(
      "data      {} {} tokens   {} per step ({} x {}{})   {}{}",
      documents ? format_count_of(rows, "text") + " of up to" : format_count_of(rows, "row") + " x", length,
      format_count_of(batches_.rows_per_step, "row"), format_count_of(world_.size(), "rank"), batches_.micro_batch_size,
      batches_.accumulation_steps > 1 ? fmt::format(" x {} micro-batches", batches_.accumulation_steps) : "",
      format_count_of(steps, "step"),
      val_loader_ ? "   validation " + format_count_of(val_loader_->num_rows(), "row") : ""));
  const auto ids = train_loader_->num_ids(rows);
  const auto left_out = train_loader_->ids_left_out(rows);
  if (left_out == 0) return;
  const auto what =
      fmt::format("{} of {} ids ({:.1f} %) are not trained on: of each {} the first {} count", format_count(left_out),
                  format_count(ids), 100.0 * static_cast<double>(left_out) / static_cast<double>(ids),
                  documents ? "text" : "row", length + 1);
  log_.info("cut       " + what);
  if (2 * left_out <= ids || world_.rank() != 0) return;
  // One long text in a cell is one document; who has such data wants all of it.
  const bool tokens_already = is_token_file(options_.train_data);
  log_.warning(fmt::format(
      "--train-data {}: {}. To train on all of it, pack it: fsdp-download tokens --pack --seq-len {} --input {} "
      "--tokenizer {} --output packed.h5, then --train-data packed.h5{}",
      options_.train_data, what, length + 1, tokens_already ? "ITS_TEXTS" : options_.train_data,
      tokenizer_name_.empty() ? "DIR" : tokenizer_name_,
      length + 1 < config_.block_size ? fmt::format("; or give a longer --seq-len (up to {})", config_.block_size)
                                      : ""));
}

void FinetuneJob::evaluate_only(nlohmann::json& report) {
  progress_ = std::make_unique<ProgressLine>(log_, world_.rank() == 0 && !options_.runtime.quiet, options_.log_every);
  validate(restart_ ? restart_->manifest.state.step : 0);
  if (val_loader_) {
    report["val_loss"] = last_val_loss_;
    report["perplexity"] = std::exp(last_val_loss_);
  }
}

void FinetuneJob::generate_text() {
  if (options_.prompt.empty()) return;
  if (tokenizer_ == nullptr) throw UsageError("--prompt: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer_, tokenizer_name_, config_);
  SamplingOptions sampling;
  sampling.num_tokens = options_.num_tokens;
  sampling.seed = options_.seed;
  const auto ids = generate(*runtime_, tokenizer_->encode_document(options_.prompt), sampling,
                            [&](std::int32_t id) { return id != tokenizer_->eos_id(); });
  if (world_.rank() == 0) log_.info("text      " + options_.prompt + continuation(*tokenizer_, ids));
}

}  // namespace detail

ExitCode run_finetune(ProcessGroup& world, const TrainOptions& options, const nlohmann::json& saved_options,
                      const Logger& log, nlohmann::json& report) {
  detail::FinetuneJob job(world, options, saved_options, log);
  return job.run(report);
}

}  // namespace fsdp
