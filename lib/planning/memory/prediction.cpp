#include "lib/planning/memory/prediction.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/engine/sharding/mesh.hpp"
#include "lib/models/config/model_flops.hpp"
#include "lib/planning/memory/device.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp {
namespace {

/// Yields `num_rows` rows with `tokens` inputs and targets as meta tensors, with documents laid out as in RandomLoader.
class MetaLoader final : public DataLoader {
 public:
  /// \param sides  sequences of a row, where it is not packed
  /// \param is_judged  rows are judged answers
  MetaLoader(std::int64_t num_rows, std::int64_t tokens, std::vector<DocumentLengths> documents, std::int64_t sides,
             bool is_judged)
      : num_rows_(num_rows), tokens_(tokens), documents_(std::move(documents)), sides_(sides), is_judged_(is_judged) {}
  std::int64_t num_rows() const override { return num_rows_; }
  MicroBatch read(const std::vector<std::int64_t>& rows,
                  const std::vector<std::uint64_t>& sample_keys = {}) const override;

 private:
  std::int64_t num_rows_;
  std::int64_t tokens_;
  std::vector<DocumentLengths> documents_;
  std::int64_t sides_;
  bool is_judged_;
};

MicroBatch MetaLoader::read(const std::vector<std::int64_t>& rows,
                            const std::vector<std::uint64_t>& sample_keys) const {
  const MemoryScope scope(MemoryCategory::batch);
  MicroBatch batch;
  batch.rows = std::ssize(rows) * sides_;
  batch.length = tokens_;
  batch.num_targets = batch.rows * tokens_;
  const auto options = at::TensorOptions(at::kInt).device(at::kMeta);
  batch.ids_N = at::empty({batch.num_targets}, options);
  batch.targets_N = at::empty({batch.num_targets}, options);
  if (!documents_.empty() && batch.rows > 0) {
    auto packing = lay_out_documents(documents_of_rows(documents_, rows.size()), tokens_);
    packing->positions_N = at::empty({batch.num_targets}, options);
    packing->starts = at::empty(packing->starts.sizes(), options);
    if (packing->whole != nullptr) {
      auto whole = std::make_shared<Packing>(*packing->whole);
      whole->starts = at::empty(whole->starts.sizes(), options);
      packing->whole = std::move(whole);
    }
    batch.packing = std::move(packing);
  }
  if (is_judged_) {
    batch.mismatched = std::make_shared<MicroBatch>(batch);
    batch.mismatched->ids_N = at::empty_like(batch.ids_N);
    batch.mismatched->targets_N = at::empty_like(batch.targets_N);
  }
  set_sample_keys(batch, sample_keys);
  return batch;
}

constexpr int kMostReplayed = 16;

constexpr std::int64_t kSegmentBytes = 2 << 20;  // segment size of the caching allocator for small tensors

template <typename Number>
void extend(Number& of_most, Number of_less, int more) {
  of_most += static_cast<Number>(more) * (of_most - of_less);
}

void extend(AxisCounts& most, const AxisCounts& less, int more) {
  extend(most.all_gathers, less.all_gathers, more);
  extend(most.reduce_scatters, less.reduce_scatters, more);
  extend(most.all_reduces, less.all_reduces, more);
  extend(most.bytes, less.bytes, more);
}

/// Only the inputs grow; the peaks stay at the same moments.
void extend(MemoryProfile& most, const MemoryProfile& less, int more) {
  const auto growth = more * std::max<std::int64_t>(0, most.peak_bytes - less.peak_bytes);
  const auto of_batch = to_index(MemoryCategory::batch);
  most.peak_bytes += growth;
  most.at_peak[of_batch] += growth;
  most.host_bytes += more * std::max<std::int64_t>(0, most.host_bytes - less.host_bytes);
  for (auto& phase : most.timeline) {
    if (phase.peak_bytes == 0) continue;
    phase.peak_bytes += growth;
    phase.at_peak[of_batch] += growth;
  }
}

/// \return bytes that a GPU's allocator needs for the inputs of `more` further micro-batches
/// \param most, less  predictions from replaying kMostReplayed micro-batches, and one fewer
std::int64_t bytes_of_more(const MemoryPrediction& most, const MemoryPrediction& less, int more) {
  const auto growth = more * std::max<std::int64_t>(0, most.profile.peak_bytes - less.profile.peak_bytes);
  return (growth + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes;
}

/// Extends `most` by `more` micro-batches; the caller updates rows_per_step.
void add_micro_batches(MemoryPrediction& most, const MemoryPrediction& less, int more) {
  if (most.on_gpu) {
    const auto bytes = bytes_of_more(most, less, more);
    most.allocator.allocated_peak_bytes += bytes;
    most.allocator.reserved_peak_bytes += bytes;
    most.allocator.reserved_bytes += bytes;
  }
  most.accumulation_steps += more;
  most.work.before_last = less.work.log;
  most.work.more = more;
  extend(most.comm.shard, less.comm.shard, more);
  extend(most.comm.replicate, less.comm.replicate, more);
  extend(most.flops, less.flops, more);
  extend(most.useful_flops, less.useful_flops, more);
  extend(most.tokens_per_step, less.tokens_per_step, more);
  extend(most.host.states_bytes, less.host.states_bytes, more);
  extend(most.profile, less.profile, more);
}

/// Marks in the work log which part of a step the following operations belong to.
class WorkObserver final : public EngineObserver {
 public:
  explicit WorkObserver(WorkLog& log) : log_(log) {}
  void begin(std::string_view what, std::string_view category) override { log_.begin(what, category); }
  void end() override { log_.end(); }

 private:
  WorkLog& log_;
};

/// The second step is the first to start with all persistent state; a third one shows that memory no longer grows.
constexpr int kSteps = 3;

HostMemory host_memory(const MemoryRequest& request, ModelRuntime& runtime, const Optimizer& optimizer,
                       const MemoryProfile& profile) {
  HostMemory host;
  host.program_bytes = program_bytes(request.gpu.has_value());
  host.states_bytes = request.gpu ? profile.host_bytes : profile.peak_bytes;
  const auto& engine = runtime.engine();
  std::int64_t shards = 0, read_back = 0;
  // Offloaded values are copied in memory, except values on disk, which are read one tensor at a time.
  const auto add = [&](const StoredTensor& values, std::int64_t bytes) {
    if (values.store() == nullptr) {
      shards += bytes;
    } else {
      read_back = std::max(read_back, bytes);
    }
  };
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& master_weight = runtime.engine().stored_master_weight(i);
    const auto element = static_cast<std::int64_t>(c10::elementSize(master_weight.dtype()));
    const auto bytes = element * engine.range(i).num_rows * engine.layout(i).row_elements();
    host.load_bytes = std::max(host.load_bytes, bytes);  // rows of one parameter are read at a time
    if (!runtime.has_adapters() || runtime.decoder().parameters[i].with_adapter()) add(master_weight, bytes);
  }
  const auto* store = runtime.store();
  if (store != nullptr) host.disk_bytes = static_cast<std::int64_t>(store->file_bytes());
  if (!runtime.saves_shards()) return host;
  if (store != nullptr) host.disk_save_bytes = static_cast<std::int64_t>(store->kept_bytes());
  for (std::size_t i = 0; i < optimizer.num_params(); ++i) {
    for (const auto& state : optimizer.states(i)) {
      auto bytes = static_cast<std::int64_t>(c10::elementSize(state.values.dtype()));
      for (const auto size : state.values.sizes().slice(1)) bytes *= size;
      add(state.values, bytes * (state.num_rows - state.saved_elsewhere));
    }
  }
  host.save_bytes = shards + read_back;
  return host;
}

/// Rejects sizes that would overflow 64-bit integers, and batches so large that merely counting their sequences takes
/// too long.
void refuse_what_cannot_be(const MemoryRequest& request, std::int64_t rows) {
  constexpr std::int64_t kMostRows = 1'000'000;
  constexpr double kMostJobBytes = 4e18, kStateBytes = 16, kFloatBytes = 4;
  if (rows > kMostRows) {
    throw RequestError(
        fmt::format("a batch of {} rows: memory is predicted for at most {} sequences at once", rows, kMostRows),
        Remedy::smaller_batch_size);
  }
  const auto& config = request.config;
  double parameters = 0;
  for (const auto& parameter : parameter_table(config)) {
    double elements = 1;
    for (const auto size : parameter.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  if (kStateBytes * parameters > kMostJobBytes) {
    throw RequestError(fmt::format("a model of {:.2g} parameters is more than any computer can address", parameters),
                       Remedy::smaller_model);
  }
  const double tokens = static_cast<double>(rows) * static_cast<double>(request.tokens_per_row);
  const auto widest = static_cast<double>(std::max(
      {3 * config.num_heads * config.head_width(), config.embed_size, config.ffn_hidden_size, config.vocab_size}));
  if (kFloatBytes * tokens * widest > kMostJobBytes) {
    throw RequestError(fmt::format("{} rows of {} tokens are {:.2g} tokens at once, more than any computer can address",
                                   rows, request.tokens_per_row, tokens),
                       Remedy::smaller_batch);
  }
}

/// Sequences of a row that is not packed.
std::int64_t sides_of(const MemoryRequest& request) {
  return request.documents.empty() && request.options.objective.has_preferences() ? 2 : 1;
}

/// Relative memory of attention for these documents. CPUs keep the probabilities of short documents for the backward
/// pass; GPUs in float32 keep those of all documents; flash attention in 16 bits allocates 128 tokens more for each
/// document, and copies of those that are shared.
double attention_weight(const MemoryRequest& request, const DocumentLengths& documents) {
  const auto& sharding = request.options.sharding;
  const bool narrow = sharding.param_dtype.value_or(sharding.precision) != at::kFloat;
  double weight = 0;
  if (request.gpu && narrow) {
    for (const auto& document : documents) weight += 128.0 + static_cast<double>(document.shared);
    return weight;
  }
  for (const auto& document : documents) {
    const auto tokens = static_cast<double>(document.whole());
    weight += tokens + (request.gpu || document.whole() <= kShortRow ? tokens * tokens : 0.0);
  }
  return weight;
}

AxisCounts minus(const AxisCounts& a, const AxisCounts& b) {
  return {a.all_gathers - b.all_gathers, a.reduce_scatters - b.reduce_scatters, a.all_reduces - b.all_reduces,
          a.bytes - b.bytes};
}

/// Counts the FLOPs of this rank's matrix products.
void count_flops(const MemoryRequest& request, const BatchPlan& batches, const ModelRuntime& runtime,
                 MemoryPrediction& prediction) {
  const auto& config = request.config;
  const auto& policy = runtime.policy();
  const double tokens = static_cast<double>(batches.micro_batch_size * sides_of(request) * request.tokens_per_row) *
                        batches.accumulation_steps;
  // All blocks cost about as much, so their average stands for each.
  const double recomputed =
      policy.checkpoint_every > 0
          ? static_cast<double>((config.num_layers + policy.checkpoint_every - 1) / policy.checkpoint_every) /
                static_cast<double>(config.num_layers)
          : 0.0;
  const double attended =
      request.documents.empty() ? static_cast<double>(request.tokens_per_row) : attended_length(request.documents);
  const auto per_token =
      flops_per_token(config, std::llround(attended), runtime.decoder().parameters, runtime.trainable());
  prediction.useful_flops = tokens * per_token.total();
  prediction.flops = tokens * (per_token.total() + recomputed * per_token.recomputable);
}

/// Predicts the allocator's statistics and the overheads of a GPU. \pre communicators are counted
void predict_allocator(const MemoryRequest& request, bool several_nodes, const MemoryLog& log,
                       MemoryPrediction& prediction) {
  const auto usual = usual_overheads(*request.gpu, prediction.communicators, several_nodes);
  prediction.overheads = {request.context_bytes.value_or(usual.context_bytes),
                          request.nccl_bytes.value_or(usual.nccl_bytes)};
  prediction.allocator =
      simulate_caching_allocator(log, allocator_capacity(*request.gpu, prediction.overheads) - request.margin_bytes);
}

/// predict_memory() for few micro-batches, all of which are replayed.
MemoryPrediction replay(const MemoryRequest& request) {
  const auto& options = request.options;
  const bool on_gpu = request.gpu.has_value();
  if (on_gpu && options.sharding.host_staged) {
    throw RequestError("copies of collectives through the host are for tests, and are not predicted of GPUs",
                       Remedy::of_collectives);
  }
  const auto batches = plan_batches(options, request.job.ranks);
  refuse_what_cannot_be(request, batches.micro_batch_size);
  const MemoryRecorder recorder(on_gpu);
  const auto work = std::make_shared<WorkLog>();
  const auto world = make_fake_world(
      request.job, [&](ProcessGroup& group) { make_mesh(group, options.sharding); }, work);
  const auto device = make_meta_device(request.gpu, recorder.tape(), work, request.threads);

  MemoryPrediction prediction;
  prediction.on_gpu = on_gpu;
  prediction.rows_per_step = batches.rows_per_step;
  prediction.accumulation_steps = batches.accumulation_steps;
  ModelRuntime runtime(*world, request.config, options.sharding, device, plan_step(options, batches));
  runtime.engine().observers().add(*recorder.tape());
  WorkObserver observer(*work);
  runtime.engine().observers().add(observer);
  const MetaLoader loader(kSteps * batches.rows_per_step, request.tokens_per_row, request.documents, sides_of(request),
                          options.objective.judges_answers());
  TrainerOptions trainer_options;
  trainer_options.batches = batches;
  trainer_options.optimizer = plan_optimizer(options);
  trainer_options.fisher_samples = 1;
  trainer_options.objective = plan_objective(options);
  Trainer trainer(runtime, loader, trainer_options);
  if (request.has_child) trainer.optimizer().expect_child(true);
  if (trainer.optimizer().is_choosing_child()) {  // one batch of the pass needs as much memory as all of them
    trainer.measure_fisher([] { return false; });
    trainer.choose_child();
  }
  std::vector<std::int32_t> first_phases;
  CommCounts before;
  for (int step = 0; step < kSteps; ++step) {
    // index of the next phase, the first of this step
    first_phases.push_back(static_cast<std::int32_t>(recorder.log().phases.size()));
    before = runtime.engine().counts();
    work->restart();
    const auto report = trainer.step(batches.rows_per_step, [] { return false; });
    prediction.tokens_per_step = static_cast<double>(report.tokens);
  }
  prediction.work.log = *work;
  const auto& counts = runtime.engine().counts();
  prediction.comm = {minus(counts.shard, before.shard), minus(counts.replicate, before.replicate)};
  prediction.profile = profile_memory(recorder.log(), first_phases);
  prediction.host = host_memory(request, runtime, trainer.optimizer(), prediction.profile);
  count_flops(request, batches, runtime, prediction);
  prediction.recorded_micro_batches = runtime.engine().recording_counts().replayed;
  const auto& mesh = runtime.mesh();
  prediction.communicators = mesh.communicators();
  if (on_gpu) predict_allocator(request, mesh.num_nodes > 1, recorder.log(), prediction);
  return prediction;
}

/// Predicts the job as requested, with or without recorded work (CUDA graphs).
MemoryPrediction predict(const MemoryRequest& request) {
  const auto batches = plan_batches(request.options, request.job.ranks);
  const int more = batches.accumulation_steps - kMostReplayed;
  if (more <= 0) return replay(request);
  auto fewer = request;
  fewer.options.batch_size = batches.micro_batch_size;
  fewer.options.total_batch_size = 0;
  fewer.options.gradient_accumulation_steps = kMostReplayed - 1;
  const auto less = replay(fewer);
  fewer.options.gradient_accumulation_steps = kMostReplayed;
  auto prediction = replay(fewer);
  if (prediction.on_gpu) {
    fewer.margin_bytes += bytes_of_more(prediction, less, more);
    prediction = replay(fewer);
  }
  add_micro_batches(prediction, less, more);
  prediction.rows_per_step = batches.rows_per_step;
  return prediction;
}

}  // namespace

std::vector<DocumentLengths> documents_to_predict(const MemoryRequest& request, const TrainingData* packed,
                                                  std::optional<StepSlice> places) {
  if (packed == nullptr) {
    DocumentLengths documents;
    // A packed row of preferences has an even number of documents.
    const auto step =
        request.options.objective.has_preferences() ? std::min(kShortRow, request.tokens_per_row / 2) : kShortRow;
    for (auto left = request.tokens_per_row; left > 0; left -= documents.back().tokens)
      documents.emplace_back(std::min(step, left));
    if (request.options.objective.has_preferences() && documents.size() % 2 != 0) documents.pop_back();
    return {documents};
  }
  const auto& options = request.options;
  const auto batches = plan_batches(options, request.job.ranks);
  if (!places) {
    const auto steps = options.max_steps > 0 ? options.max_steps : packed->num_rows();
    const bool is_short = steps <= packed->num_rows() / batches.rows_per_step;
    places = StepSlice{packed->first_position(), is_short ? steps * batches.rows_per_step : packed->num_rows()};
  }
  return packed->heaviest_micro_batch(*places, batches.micro_batch_size,
                                      [&](const DocumentLengths& row) { return attention_weight(request, row); });
}

std::int64_t program_bytes(bool gpu) {
  // Resident set of fsdp-finetune before its first tensor. CPU: libtorch_cpu and MPI. GPU: also libtorch_cuda, the
  // driver's mappings and 32 MiB of pinned staging buffers (lib/compute/cuda/staged_copies.hpp).
  return (gpu ? std::int64_t{1632} : std::int64_t{180}) << 20;
}

std::int64_t allocator_capacity(const GpuSpec& gpu, const DeviceOverheads& overheads) {
  return gpu.total_bytes - overheads.context_bytes - overheads.nccl_bytes;
}

std::int64_t MemoryPrediction::allocator_peak_bytes() const {
  return on_gpu ? allocator.reserved_peak_bytes : profile.peak_bytes;
}

std::int64_t MemoryPrediction::total_bytes() const {
  return allocator_peak_bytes() + overheads.context_bytes + overheads.nccl_bytes;
}

std::int64_t MemoryPrediction::rounding_bytes() const {
  return on_gpu ? allocator.reserved_peak_bytes - profile.peak_bytes : 0;
}

MemoryPrediction predict_memory(const MemoryRequest& request) {
  auto prediction = predict(request);
  if (prediction.recorded_micro_batches == 0) return prediction;
  // A replay of recorded work does not show its single operations, so work and FLOPs come from an unrecorded run.
  auto eager = request;
  eager.options.sharding.cuda_graphs = CudaGraphs::off;
  auto seen = predict(eager);
  prediction.profile.timeline = std::move(seen.profile.timeline);
  prediction.work = std::move(seen.work);
  return prediction;
}

}  // namespace fsdp
