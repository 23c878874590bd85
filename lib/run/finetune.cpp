#include <fmt/format.h>

#include "lib/base/text_format.hpp"
#include "lib/run/evaluate.hpp"
#include "lib/run/finetune.hpp"
#include "lib/run/finetune_job.hpp"
#include "lib/run/generate.hpp"
#include "lib/run/initialize.hpp"
#include "lib/run/throughput.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/tokenizer/byte_level_bpe.hpp"

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
  restart_ = find_restart(world_, options_, directory_ / "checkpoints", log_);
  config_ = plan_model(options_, restart_);
  batches_ = plan_batches(options_, world_.size());
  const auto seq_len = options_.model.seq_len == 0 ? config_.block_size : options_.model.seq_len;
  const bool training = options_.max_epochs >= 0 || options_.max_steps > 0;
  if (!options_.save_final_full.empty()) check_full_output();
  if (training) {
    if (options_.train_data.empty()) throw UsageError("--train-data is missing: an HDF5 file with a dataset input_ids");
    train_reader_.emplace(options_.train_data, seq_len, config_.vocab_size);
  }
  if (!options_.val_data.empty()) val_reader_.emplace(options_.val_data, seq_len, config_.vocab_size);
  if (!training && !val_reader_ && options_.prompt.empty()) {
    throw UsageError("--max-epochs -1 evaluates only: give --val-data, --prompt or both");
  }
  const auto schedule =
      plan_schedule(options_, training ? plan_steps(options_, train_reader_->num_rows(), batches_.rows_per_step) : 1);
  runtime_ = std::make_unique<ModelRuntime>(world_, config_, options_.sharding, device_, batches_.accumulation_steps);
  if (!options_.runtime.trace_file.empty()) runtime_->engine().trace().enable();
  if (training) {
    const TrainerOptions trainer_options{batches_,
                                         schedule,
                                         plan_optimizer(options_),
                                         options_.decay_all,
                                         options_.clip_grad_norm,
                                         options_.seed,
                                         !options_.no_shuffle};
    trainer_ = std::make_unique<Trainer>(*runtime_, *train_reader_, trainer_options);
    trainer_->set_device_backend(device_.backend);
  }
  describe(device_, threads);
  if (options_.dry_run) return;
  if (restart_) {
    restore();
  } else if (options_.model.model == "mingpt") {
    initialize_parameters(*runtime_, options_.seed);
  } else {
    load_safetensors_parameters(*runtime_, options_.model.model);
  }
}

void FinetuneJob::describe(const DeviceChoice& device, int threads) {
  const auto& mesh = runtime_->mesh();
  log_.info(fmt::format("fsdp-finetune {}   {} rank{} on {} node{}   {}, {} thread{} per rank   {}", FSDP_VERSION,
                        world_.size(), world_.size() == 1 ? "" : "s", mesh.num_nodes, mesh.num_nodes == 1 ? "" : "s",
                        device.description, threads, threads == 1 ? "" : "s",
                        device.backend != nullptr                                         ? "NCCL"
                        : world_.size() == 1                                              ? "no collectives"
                        : runtime_->engine().uses_peer_memory() && mesh.shard->size() > 1 ? "shared-memory collectives"
                                                                                          : "MPI collectives"));
  const auto& policy = runtime_->policy();
  log_.info(fmt::format(
      "model     mingpt {} x {}, {:.1f} M parameters in {} unit{}   {}{}, prefetch {}{}{}   {}", config_.num_layers,
      config_.embed_size, static_cast<double>(num_parameters(runtime_->decoder().parameters)) / 1e6,
      runtime_->num_units(), runtime_->num_units() == 1 ? "" : "s", to_string(policy.sharding),
      is_hybrid(policy.sharding) ? fmt::format(" ({} shards x {} replicas)", mesh.shard->size(), mesh.replicate->size())
                                 : "",
      to_string(policy.backward_prefetch), policy.forward_prefetch ? " + forward" : "",
      policy.limit_all_gathers ? ", 2 gathers in flight" : "", float_type_name(policy.precision.param_dtype)));
  const auto length = train_reader_ ? train_reader_->tokens_per_row()
                                    : (val_reader_ ? val_reader_->tokens_per_row() : config_.block_size);
  if (train_reader_) {
    log_.info(fmt::format(
        "data      {} rows x {} tokens   {} rows per step ({} ranks x {}{})   {} steps{}",
        format_count(train_reader_->num_rows()), length, batches_.rows_per_step, world_.size(),
        batches_.rows_per_micro_batch,
        batches_.accumulation_steps > 1 ? fmt::format(" x {} micro-batches", batches_.accumulation_steps) : "",
        format_count(plan_steps(options_, train_reader_->num_rows(), batches_.rows_per_step)),
        val_reader_ ? fmt::format("   validation {} rows", format_count(val_reader_->num_rows())) : ""));
  }
  const auto memory = estimate_memory(*runtime_, batches_.rows_per_micro_batch, length, batches_.accumulation_steps);
  log_.info(fmt::format(
      "memory    per rank: states {}, gathered {}, gradients {}, activations {}, logits {}   estimate {}{}",
      format_bytes(memory.states), format_bytes(memory.gathered), format_bytes(memory.gradients),
      format_bytes(memory.activations), format_bytes(memory.logits), format_bytes(memory.total()),
      device.device.is_cpu() ? fmt::format(" of {} on the node", format_bytes(machine_memory_bytes())) : ""));
}

void FinetuneJob::evaluate_only(nlohmann::json& report) {
  progress_ = std::make_unique<ProgressLine>(log_, world_.rank() == 0 && !options_.runtime.quiet, options_.log_every);
  validate(restart_ ? restart_->manifest.state.step : 0);
  if (val_reader_) {
    report["val_loss"] = last_val_loss_;
    report["perplexity"] = std::exp(last_val_loss_);
  }
}

void FinetuneJob::generate_text() {
  if (options_.prompt.empty()) return;
  const auto tokenizer = make_gpt2_tokenizer();
  SamplingOptions sampling;
  sampling.num_tokens = options_.num_tokens;
  sampling.seed = options_.seed;
  const auto ids = generate(*runtime_, tokenizer->encode(options_.prompt), sampling);
  if (world_.rank() == 0) log_.info("text      " + options_.prompt + tokenizer->decode(ids));
}

}  // namespace detail

ExitCode run_finetune(ProcessGroup& world, const TrainOptions& options, const nlohmann::json& saved_options,
                      const Logger& log, nlohmann::json& report) {
  detail::FinetuneJob job(world, options, saved_options, log);
  return job.run(report);
}

}  // namespace fsdp
