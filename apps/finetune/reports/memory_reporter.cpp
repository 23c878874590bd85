#include "apps/finetune/reports/memory_reporter.hpp"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "apps/common/remedies.hpp"
#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/state/load/plan_load.hpp"

namespace fsdp::detail {
namespace {

std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

std::int64_t part(const MemoryPrediction& p, std::initializer_list<MemoryCategory> categories) {
  std::int64_t sum = 0;
  for (const auto category : categories) sum += p.profile.at_peak[static_cast<std::size_t>(category)];
  return sum;
}

/// The user's settings of PyTorch's allocator, which change what is reserved and which the prediction does not know.
std::string allocator_settings() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return fmt::format("   {}={}", name, value);
  }
  return {};
}

}  // namespace

/// Finds the GPU with the least memory of all ranks, and what is used of a GPU by others. Collective. \pre there is a
/// GPU
void MemoryReporter::find_gpu_to_predict() {
  const auto& device = setup_.device;
  const auto local = gpu_of(device.backend->info(device.device.index()));
  const auto bytes_of_all = [&](Reduce op) { return world_.all_reduce(static_cast<double>(local.total_bytes), op); };
  const double least = bytes_of_all(Reduce::min), most = bytes_of_all(Reduce::max);
  const double last = world_.size();
  const bool is_smallest = static_cast<double>(local.total_bytes) == least;
  const int smallest = static_cast<int>(world_.all_reduce(is_smallest ? world_.rank() : last, Reduce::min));
  const auto name = world_.broadcast_text(local.name, smallest);
  std::array<std::int64_t, 3> facts{local.total_bytes, local.compute_capability, local.multiprocessors};
  world_.broadcast(std::as_writable_bytes(std::span(facts)), smallest);
  request_.gpu = GpuSpec{name, facts[0], static_cast<int>(facts[1]), static_cast<int>(facts[2])};
  // NCCL allocates its buffers at the first transfers; memory in use now belongs to the CUDA context and other
  // programs.
  const auto outside = static_cast<double>(bytes_outside_allocator(*device.backend, device.device.index()));
  request_.context_bytes = std::max(usual_overheads(*request_.gpu, 0, false).context_bytes,
                                    static_cast<std::int64_t>(world_.all_reduce(outside, Reduce::max)));
  const auto other = first_problem(world_, local.name == name && least == most ? "" : local.name);
  if (!other) return;
  log_.info(
      fmt::format("gpus      they differ: rank {} has a {}. Memory and speed are predicted for the smallest, a {} of "
                  "rank {}",
                  other->rank, other->text, name, smallest));
}

void MemoryReporter::predict() {
  if (setup_.device.backend != nullptr && !setup_.options.sharding.host_staged) find_gpu_to_predict();
  if (world_.rank() != 0 || (setup_.device.backend != nullptr && setup_.options.sharding.host_staged)) return;
  auto& request = request_;
  request.config = setup_.config;
  request.options = setup_.options;
  request.options.sharding.cuda_graphs = setup_.cuda_graphs();
  request.options.sharding.lora = setup_.lora;
  request.options.batch_size = setup_.batches.micro_batch_size;
  request.options.total_batch_size = 0;
  request.options.gradient_accumulation_steps = setup_.batches.accumulation_steps;
  request.tokens_per_row = setup_.train_data->tokens_per_row();
  request.job = {world_.size(), setup_.ranks_on_node, 0};
  request.threads = setup_.threads;
  request.has_child = setup_.restart && setup_.restart->checkpoint && has_child(*setup_.restart->checkpoint);
  try {
    if (setup_.train_data->is_packed()) request.documents = documents_to_predict(request, &*setup_.train_data);
    prediction_ = predict_memory(request);
  } catch (const std::exception& error) {
    // A failed prediction must not end the job.
    const auto text = told(error);
    log_.warning(fmt::format("memory cannot be predicted: {}", text.substr(0, text.find('\n'))));
  }
}

MemoryBudget MemoryReporter::budget() const {
  return {.gpu = request_.gpu, .host_bytes = machine_memory_bytes() / setup_.ranks_on_node};
}

MemoryReporter::Room MemoryReporter::room() const {
  if (!prediction_) return Room::unknown;
  const auto limit = budget();
  if (!limit.gpu && limit.host_bytes <= 0) return Room::unknown;
  if (fits_budget(*prediction_, limit)) return Room::enough;
  if (limit.gpu) return Room::doubtful;
  struct sysinfo system {};
  const auto swap = ::sysinfo(&system) == 0 ? static_cast<std::int64_t>(system.totalswap) * system.mem_unit : 0;
  return least_bytes() > limit.host_bytes + swap / setup_.ranks_on_node ? Room::lacking : Room::doubtful;
}

/// \return the bytes of a rank on CPUs without which no epoch ends: without the copy of a save, and with texts of the
/// mean length, which some micro-batch reaches. The prediction is for the longest text.
std::int64_t MemoryReporter::least_bytes() const {
  const auto steps = [](const MemoryPrediction& p) { return p.host.program_bytes + p.host.states_bytes; };
  const auto& data = *setup_.train_data;
  const auto texts = data.num_records();
  if (!data.has_documents() || data.is_packed() || texts == 0) return steps(*prediction_);
  auto request = request_;
  request.tokens_per_row =
      std::clamp<std::int64_t>((data.num_ids() - data.ids_left_out()) / texts - 1, 1, request.tokens_per_row);
  return steps(predict_memory(request));
}

std::string MemoryReporter::what_helps() const {
  MemprobeOptions asked;
  asked.train = request_.options;
  asked.shardings = {request_.options.sharding.sharding};
  asked.checkpointings = {request_.options.sharding.checkpoint_every};
  return what_would_fit(asked, budget(), request_, setup_.batches.accumulation_steps) + " (fsdp-memprobe)";
}

void MemoryReporter::tell() const {
  if (!prediction_) return;
  const auto& p = *prediction_;
  using enum MemoryCategory;
  const bool gpu = setup_.device.backend != nullptr;
  const auto available = gpu ? request_.gpu->total_bytes : machine_memory_bytes();
  log_.info(fmt::format(
      "memory    per rank: states {}, gathered {}, gradients under way {}, activations {}, logits {}   predicted peak "
      "{} of {}{}",
      bytes(part(p, {parameters, gradients, optimizer})), bytes(part(p, {gathered})), bytes(part(p, {reduce_buffers})),
      bytes(part(p, {activations, workspace, batch})), bytes(part(p, {logits})), bytes(p.total_bytes()),
      bytes(available), gpu ? "" : " on the node"));
  if (p.host.disk_bytes > 0) {
    log_.info(fmt::format("disk      per rank in {}: {}, and {} more while a checkpoint is saved",
                          setup_.options.sharding.offload_optimizer.directory, bytes(p.host.disk_bytes),
                          bytes(p.host.disk_save_bytes)));
  }
  if (room() != Room::doubtful) return;
  if (gpu) {
    log_.warning(
        fmt::format("the steps want more than the GPU has: expect {}; a smaller --batch-size with more "
                    "accumulation or --activation-checkpointing all helps, fsdp-memprobe --search finds what fits",
                    p.allocator.num_ooms > 0 ? "to run out of memory" : "cudaMalloc retries, which stop it"));
  }
  if (!gpu) {
    log_.warning(fmt::format("{} rank{} of {} each, with program and checkpoint, are more than the node's memory",
                             setup_.ranks_on_node, setup_.ranks_on_node == 1 ? "" : "s", bytes(p.host.peak_bytes())));
  }
}

/// Logs the memory of the GPU that PyTorch's allocator does not count, now that NCCL has connected. Collective.
void MemoryReporter::log_outside() {
  const auto& device = setup_.device;
  if (device.backend == nullptr) return;
  const auto local = static_cast<double>(bytes_outside_allocator(*device.backend, device.device.index()));
  const auto most = world_.all_reduce(local, Reduce::max);
  if (!prediction_) return;
  const auto& expected = prediction_->overheads;
  log_.info(fmt::format(
      "memory    after the first step: {} outside the allocator (highest rank), expected {} ({} context, {} NCCL)",
      format_bytes(most), bytes(expected.context_bytes + expected.nccl_bytes), bytes(expected.context_bytes),
      bytes(expected.nccl_bytes)));
}

void MemoryReporter::require_room() const {
  run_agreed(world_, [&] {
    if (room() != Room::lacking) return;
    tell();
    throw Error(ExitCode::answer_no, "the job does not fit into this node's memory: " + what_helps());
  });
}

/// Records the peak of steps that had the memory to themselves: copies for checkpoints and validations are not part of
/// a step.
void MemoryReporter::after_step(const StepReport& step, bool) {
  last_step_ = step;
  if (!std::exchange(logged_outside_, true)) log_outside();
  if (was_disturbed_) return;
  ++undisturbed_steps_;
  longest_row_ = std::max(longest_row_, step.longest_row);
  step_peak_bytes_ =
      std::max(step_peak_bytes_, setup_.device.backend != nullptr ? step.reserved_bytes : step.peak_memory_bytes);
  if (compared_.num_samples == 0) compared_.first_position = step.first_sample;
  compared_.num_samples += step.samples;
}

/// Writes the prediction error to memory.json on rank 0. \return a short summary for the log; empty when not comparable
std::string MemoryReporter::judge(const ModelRuntime& runtime, MemoryOutcome& outcome, nlohmann::json& report) {
  // Optimizer states are missing in the first step, and the second may be the first step with all of them.
  if (!prediction_ || undisturbed_steps_ < 2 || step_peak_bytes_ <= 0) return "";
  try {
    // The prediction is for the longest possible row; the texts may be shorter.
    const bool is_packed = !request_.documents.empty();
    if (is_packed) request_.documents = documents_to_predict(request_, &*setup_.train_data, compared_);
    if (longest_row_ > 0 && (is_packed || longest_row_ < request_.tokens_per_row)) {
      request_.tokens_per_row = longest_row_;
      prediction_ = predict_memory(request_);
    }
    outcome.nodes = runtime.mesh().num_nodes;
    outcome.communicators = prediction_->communicators;
    outcome.predicted_bytes = prediction_->allocator_peak_bytes();
    outcome.measured_bytes = step_peak_bytes_;
    report["memory"] = to_json(outcome);
    report["memory"]["longest_sequence"] = longest_row_;
    replace_file(setup_.directory / "memory.json", printable_json(report["memory"], 2) + "\n");
  } catch (const std::exception& error) {
    log_.warning(fmt::format("memory.json: {}", error.what()));  // training continues
    return "";
  }
  return fmt::format("   prediction {:+.2f} %", 100 * relative_error(outcome));
}

void MemoryReporter::report(const ModelRuntime& runtime, nlohmann::json& report) {
  if (last_step_.step == 0) return;
  report["peak_memory_bytes"] = last_step_.peak_memory_bytes;
  MemoryOutcome outcome;
  outcome.device = "cpu";
  if (setup_.device.backend == nullptr) {
    log_.info(fmt::format("memory    peak {} in tensors, {} resident (highest rank){}",
                          format_bytes(last_step_.peak_memory_bytes), format_bytes(last_step_.peak_rss_bytes),
                          judge(runtime, outcome, report)));
    return;
  }
  const int device = setup_.device.device.index();
  const auto info = setup_.device.backend->info(device);
  const auto outside = static_cast<double>(bytes_outside_allocator(*setup_.device.backend, device));
  outcome.device = info.name;
  outcome.gpu_bytes = info.total_bytes;
  outcome.overhead_bytes = static_cast<std::int64_t>(std::max(0.0, world_.all_reduce(outside, Reduce::max)));
  outcome.alloc_retries = last_step_.alloc_retries;
  const auto judgement = judge(runtime, outcome, report);
  log_.info(fmt::format(
      "memory    peak {} in tensors, {} reserved, {:.1f} % of the card, and {} outside the allocator (highest rank)   "
      "{} cudaMalloc retries, {} out of memory{}{}",
      format_bytes(last_step_.peak_memory_bytes), format_bytes(last_step_.reserved_bytes),
      100.0 * static_cast<double>(last_step_.reserved_bytes) / static_cast<double>(outcome.gpu_bytes),
      bytes(outcome.overhead_bytes), outcome.alloc_retries, last_step_.num_ooms, judgement, allocator_settings()));
  report["reserved_memory_bytes"] = last_step_.reserved_bytes;
  report["alloc_retries"] = outcome.alloc_retries;
  report["ooms"] = last_step_.num_ooms;
  if (outcome.alloc_retries == 0 || world_.rank() != 0) return;
  log_.warning(fmt::format(
      "{} cudaMalloc retries: the batch only just fits, and every retry stops the GPU to give back memory; a smaller "
      "--batch-size with more accumulation is faster (fsdp-memprobe --search finds the largest without retries)",
      outcome.alloc_retries));
}

std::string without_room(const c10::OutOfMemoryError& error, const RecordingCounts& graphs) {
  std::string text = error.what_without_backtrace();
  if (graphs.recorded == 0) return text;
  return fmt::format("{} of this job keep memory that other work then lacks: start it with --cuda-graphs off. {}",
                     format_count_of(graphs.recorded, "CUDA graph"), text);
}

}  // namespace fsdp::detail
