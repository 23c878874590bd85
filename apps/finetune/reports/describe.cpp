#include "apps/finetune/reports/describe.hpp"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/finetune/reports/left_out.hpp"
#include "apps/finetune/reports/memory_reporter.hpp"
#include "apps/finetune/reports/samples_file.hpp"
#include "apps/finetune/reports/speed_reporter.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/variables.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/bf16/processor.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/engine/sharding/mesh.hpp"
#include "lib/planning/memory/device.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/ranks/fake_group.hpp"
#include "lib/training/step/throughput.hpp"

namespace fsdp::detail {
namespace {

std::string products_of(const ModelRuntime& runtime) {
  auto products = runtime.ops().gemm_description(runtime.policy().precision.param_dtype);
  if (asks_for_fp8(runtime.decoder().options.compute_dtype))
    products += ", blocks' " + runtime.ops().fp8_gemm_description();
  return products;
}

std::string validation_words(const RunSetup& setup) {
  std::string text;
  for (const auto& set : setup.validation) {
    text += fmt::format("{}{}{}{}", text.empty() ? "   validation " : ", ", set.name, set.name.empty() ? "" : " ",
                        format_count_of(set.rows.num_rows(), "row"));
  }
  return text;
}

/// "1,200 texts of up to 256 tokens", "80 rows x 512 tokens"
std::string rows_words(const TokenLoader& rows) {
  const bool texts = rows.has_documents() && !rows.is_packed();
  const auto count = rows.num_rows();
  return fmt::format("{} {} tokens",
                     texts ? format_count_of(count, rows.has_preferences() ? "preference" : "text") + " of up to"
                           : format_count_of(count, "row") + " x",
                     rows.tokens_per_row());
}

void describe_rows(ProcessGroup& world, const RunSetup& setup, const std::string& name, const TokenLoader& rows,
                   const Logger& log) {
  const auto of_source = name.empty() ? "" : "   (" + name + ")";
  if (rows.is_packed()) {
    log.info(fmt::format("packed    {} in {}, which are {:.1f} % full; each sees itself alone{}",
                         format_count_of(rows.num_records(), "text"), format_count_of(rows.num_rows(), "row"),
                         100 * rows.fill(), of_source));
    if (const auto shared = rows.shared_tokens(); shared > 0) {
      log.info(fmt::format("shared    {} of prompts are computed once for both sides{}",
                           format_count_of(shared, "token"), of_source));
    }
  }
  if (setup.config.has_scores()) {
    log.info("targets   one score for each text, after its last token" + of_source);
  } else if (rows.has_loss_mask()) {
    log.info("targets   those that loss_mask marks; the others are read alone" + of_source);
  }
  if (setup.options.pack && rows.is_stream())
    log.info("packed    the rows of a stream are full: --pack changes nothing" + of_source);
  if (!rows.has_loss_mask() || rows.ids_left_out(rows.num_records()) == 0) return;
  if (const auto none = world.rank() == 0 ? rows.documents_without_targets(rows.num_records()) : 0; none > 0) {
    const auto ids_read = rows.longest_sequence() + 1;
    log.warning(fmt::format("{}{} of {} have no token that counts among their first {} and train nothing{}",
                            name.empty() ? "" : name + ": ", format_count(none),
                            format_count_of(rows.num_records(), "text"), ids_read,
                            ids_read >= setup.config.block_size
                                ? ""
                                : fmt::format(": give a longer --seq-len (up to {})", setup.config.block_size)));
  }
}

/// The part of a source of a mixture in the whole run.
struct SourcePlan {
  const TrainingSource& source;
  double share = 0;          ///< of the samples
  std::int64_t samples = 0;  ///< with those before a restart
  std::int64_t tokens = 0;   ///< of these samples
  double epochs = 0;
};

std::vector<SourcePlan> plan_sources(const RunSetup& setup) {
  const auto& data = *setup.train_data;
  const auto end = std::min(setup.total_samples, setup.total_steps * setup.batches.rows_per_step);
  const auto places = data.places(std::max(end, data.first_position()));
  double weights = 0;
  for (const auto& source : data.sources()) weights += static_cast<double>(source.weight);
  std::vector<SourcePlan> plans;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& source = data.sources()[i];
    const auto& place = places[i].rows;
    const auto records = source.rows.num_records();
    const auto tokens = source.rows.has_documents()
                            ? source.rows.num_ids(records) - source.rows.ids_left_out(records) - records
                            : records * source.rows.tokens_per_row();
    const auto per_sample = static_cast<double>(tokens) / static_cast<double>(source.rows.num_rows());
    plans.push_back({source, static_cast<double>(source.weight) / weights, place.samples,
                     std::llround(per_sample * static_cast<double>(place.samples)), place.epochs()});
  }
  return plans;
}

void describe_mixture(const RunSetup& setup, const Logger& log) {
  const bool repeats = setup.train_data->end() == MixEnd::repeat;
  for (const auto& [source, share, samples, tokens, epochs] : plan_sources(setup)) {
    log.info(fmt::format("source    {}   {:.4g} %   {}   {}, {} tokens in the run: {:.3g} epochs{}", source.name,
                         100 * share, rows_words(source.rows), format_count_of(samples, "sample"), format_count(tokens),
                         epochs, repeats && epochs > 1 ? ", it repeats" : ""));
  }
}

void report_mixture(const RunSetup& setup, nlohmann::json& report) {
  if (!setup.train_data || !setup.train_data->is_mixture()) return;
  for (const auto& [source, share, samples, tokens, epochs] : plan_sources(setup)) {
    report["sources"].push_back({{"name", source.name},
                                 {"share", share},
                                 {"rows", source.rows.num_rows()},
                                 {"samples", samples},
                                 {"tokens", tokens},
                                 {"epochs", epochs}});
  }
}

void describe_data(ProcessGroup& world, const RunSetup& setup, const Logger& log) {
  const auto& data = *setup.train_data;
  const auto& first = data.sources().front().rows;
  log.info(fmt::format(
      "data      {}   {} per step ({} x {}{})   {}{}",
      data.is_mixture() ? fmt::format("{} of {}, up to {} tokens", format_count_of(data.num_rows(), "sample"),
                                      format_count_of(std::ssize(data.sources()), "source"), data.tokens_per_row())
                        : rows_words(first),
      format_count_of(setup.batches.rows_per_step, "row"), format_count_of(world.size(), "rank"),
      setup.batches.micro_batch_size,
      setup.batches.accumulation_steps > 1 ? fmt::format(" x {} micro-batches", setup.batches.accumulation_steps) : "",
      format_count_of(setup.total_steps, "step"), validation_words(setup)));
  if (data.is_mixture()) describe_mixture(setup, log);
  for (const auto& source : data.sources())
    describe_rows(world, setup, data.is_mixture() ? source.name : "", source.rows, log);
}

/// True when the usual micro-batches are small enough for CUDA graphs.
bool uses_graphs(const RunSetup& setup, const ModelRuntime& runtime) {
  if (!setup.train_data || setup.train_data->is_packed()) return false;
  return setup.batches.micro_batch_size * setup.train_data->tokens_per_row() <= runtime.policy().graph_max_tokens;
}

/// Logs how many parameters are trained; nothing when all of them are.
void describe_training(const RunSetup& setup, const ModelRuntime& runtime, const Logger& log) {
  const auto& table = runtime.decoder().parameters;
  const auto all = num_parameters(table), trained = num_trained(table, runtime.trainable());
  if (trained == all) return;
  const auto& [train_only, freeze] = setup.options.sharding.freeze;
  const auto& lora = runtime.decoder().options.lora;
  if (const auto& quantize = runtime.decoder().options.quantize; quantize.enabled())
    log.info("weights   " + quantization_text(quantize) + " in the matrices of the blocks");
  if (lora.enabled()) {
    auto whole = lora.modules_to_save;
    if (setup.config.has_scores() && std::ranges::count(whole, "score") == 0) whole.emplace_back("score");
    log.info(fmt::format("adapters  {} of rank {}, alpha {:g}{}, of {}{}",
                         lora.dora     ? "DoRA"
                         : lora.rslora ? "rsLoRA"
                                       : "LoRA",
                         lora.rank, lora.alpha, lora.dropout > 0 ? fmt::format(", dropout {:g}", lora.dropout) : "",
                         fmt::join(lora_targets(setup.config, lora), " "),
                         whole.empty() ? "" : fmt::format("   and whole {}", fmt::join(whole, " "))));
  }
  log.info(fmt::format("trained   {} of {} parameters ({:.2f} %){}{}", format_count(trained), format_count(all),
                       100.0 * static_cast<double>(trained) / static_cast<double>(all),
                       train_only.empty() ? "" : fmt::format("   only {}", fmt::join(train_only, " ")),
                       freeze.empty() ? "" : fmt::format("   frozen {}", fmt::join(freeze, " "))));
}

void say_whether_weights_are_there(const RunSetup& setup, const Logger& log) {
  if (setup.restart || setup.options.model.directory.empty()) return;
  try {
    open_weights(setup.options.model.directory);
  } catch (const Error& error) {
    log.warning(fmt::format("the weights are not there yet, training will need them: {}", error.what()),
                error.advice());
  }
}

/// Says on rank 0 whether the job fits into memory, and if not, what would help. \return false when it does not fit
bool tell_whether_it_fits(const MemoryReporter& memory, const Logger& log) {
  const auto room = memory.room();
  if (room == MemoryReporter::Room::unknown || room == MemoryReporter::Room::enough) return true;
  log.warning("the job does not fit: " + memory.what_helps());
  return false;
}

}  // namespace

std::string describe_arithmetic(const RunSetup& setup, const ModelRuntime& runtime) {
  return fmt::format("{}, {}, {} on {} threads with {}", read_processor().name, setup.device.description,
                     products_of(runtime), setup.threads, at::get_cpu_capability());
}

std::string agree_on_products(ProcessGroup& world, const ModelRuntime& runtime, const Logger& log) {
  const auto products = products_of(runtime);
  const auto first = text_of_root(world, [&] { return products; });
  const auto other = first_problem(world, products == first ? "" : products);
  if (other && world.rank() == 0) {
    log.warning(fmt::format("processors differ: rank {} multiplies {}, rank 0 {}; the slowest sets the pace",
                            other->rank, other->text, first));
  }
  return first;
}

void describe_run(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, const std::string& products,
                  const Logger& log) {
  const auto& device = setup.device;
  const auto& mesh = runtime.mesh();
  log.info(fmt::format("fsdp-finetune {}   {} on {}   {}, {} per rank   {}", FSDP_VERSION,
                       format_count_of(world.size(), "rank"), format_count_of(mesh.num_nodes, "node"),
                       device.description, format_count_of(setup.threads, "thread"),
                       device.backend != nullptr ? device.backend->info(device.device.index()).collectives
                       : world.size() == 1       ? "no collectives"
                       : runtime.engine().uses_peer_memory() && mesh.shard.size() > 1 ? "shared-memory collectives"
                                                                                      : "MPI collectives"));
  if (launcher_kind() == LauncherKind::open_mpi && !variable_value("FSDP_EXIT_FILE")) {
    log.info(fmt::format(
        "stop      kill -USR1 {} saves first; after Ctrl-C or SIGTERM mpirun of Open MPI kills the ranks within 2 s",
        ::getppid()));
  }
  const auto& policy = runtime.policy();
  log.info(
      fmt::format("model     {} {} x {}, {:.1f} M parameters in {}   {}{}, prefetch {}{}{}{}   {}{}{}",
                  architecture_name(setup.config), setup.config.num_layers, setup.config.embed_size,
                  static_cast<double>(num_parameters(runtime.decoder().parameters)) / 1e6,
                  format_count_of(static_cast<std::int64_t>(runtime.num_units()), "unit"), to_string(policy.sharding),
                  is_hybrid(policy.sharding) ? fmt::format(" ({} x {})", format_count_of(mesh.shard.size(), "shard"),
                                                           format_count_of(mesh.replicate.size(), "replica"))
                                             : "",
                  to_string(policy.backward_prefetch), policy.forward_prefetch ? " + forward" : "",
                  policy.limit_all_gathers ? ", 2 gathers in flight" : "",
                  uses_graphs(setup, runtime) ? ", CUDA graphs" : "", float_type_name(policy.precision.param_dtype),
                  !asks_for_fp8(runtime.decoder().options.compute_dtype) ? ""
                  : runtime.ops().on_host()                              ? ", blocks multiply in fp8, emulated"
                                                                         : ", blocks multiply in fp8",
                  products.find("TF32") != std::string::npos        ? ", multiplied in TF32"
                  : products.find(" through ") == std::string::npos ? ""
                  : policy.wide_weights ? ", multiplied through float32, in which weights are kept"
                                        : ", multiplied through float32"));
  if (setup.options.sharding.wide_weights && !policy.wide_weights) {
    log.info("--wide-weights changes nothing here: " + products);
  }
  if (setup.train_data) {
    describe_training(setup, runtime, log);
    describe_data(world, setup, log);
  }
  log_left_out(setup, log);
}

ExitCode dry_run(ProcessGroup& world, const RunSetup& setup, const Logger& log, nlohmann::json& report) {
  report["dry_run"] = true;
  report_mixture(setup, report);
  if (!setup.options.samples_file.empty()) write_samples(world, setup, log);
  auto sharding = setup.options.sharding;
  sharding.lora = setup.lora;
  (void)plan_optimizer(setup.options);  // refuses what training would refuse
  std::optional<GpuSpec> gpu;
  if (setup.device.backend != nullptr) gpu = gpu_of(setup.device.backend->info(setup.device.device.index()));
  const auto fake_world = make_fake_world({world.size(), setup.ranks_on_node, world.rank()},
                                          [&](ProcessGroup& group) { make_mesh(group, sharding); });
  {
    const MemoryRecorder recorder(setup.device.backend != nullptr);
    ModelRuntime runtime(*fake_world, setup.config, sharding,
                         make_meta_device(gpu, recorder.tape(), std::make_shared<WorkLog>(), 1), shape_of_steps(setup));
    describe_run(world, setup, runtime, agree_on_products(world, runtime, log), log);
  }
  if (world.rank() == 0) say_whether_weights_are_there(setup, log);
  if (!setup.train_data) return ExitCode::ok;
  MemoryReporter memory(world, setup, log);
  memory.predict();
  memory.tell();
  const PartTimer timer;
  Progress progress(log, /*enabled=*/false, 0);
  SpeedReporter speed(world, setup, memory, timer, log, progress);
  const auto done = setup.restart ? setup.restart->manifest.state.step : 0;
  const auto steps_to_go = std::max<std::int64_t>(0, setup.total_steps - done);
  speed.predict(peak_flops(setup.device, sharding.param_dtype.value_or(sharding.precision)), steps_to_go);
  if (auto predicted = speed.predicted(steps_to_go); !predicted.is_null()) report["predicted"] = std::move(predicted);
  if (!speed.why_not().empty()) report["not_predicted"] = speed.why_not();
  if (const auto* prediction = memory.prediction()) report["predicted_peak_bytes"] = prediction->total_bytes();
  bool fits = true;
  run_agreed(world, [&] { fits = tell_whether_it_fits(memory, log); });
  report["fits"] = fits = world.all_reduce(fits ? 1.0 : 0.0, Reduce::min) > 0;
  return fits ? ExitCode::ok : ExitCode::answer_no;
}

}  // namespace fsdp::detail
