#include "lib/engine/runtime/model_runtime.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/compute/ops/products/wide_product.hpp"
#include "lib/engine/runtime/sharding_options.hpp"
#include "lib/engine/sharding/mesh.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/ranks/rank_threads.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMostWork16 = std::int64_t{1} << 36, kMostWork32 = std::int64_t{1} << 33;

/// The obstacle to graphs, and the help against it; nothing where they are possible.
std::optional<std::pair<std::string, Remedy>> in_the_way(const ShardingOptions& options, const Mesh& mesh,
                                                         const Ops& ops) {
  if (ops.recorder() == nullptr)
    return std::pair("it needs a GPU, this program's CUDA kernels and PyTorch's own allocator", Remedy::of_cuda_graphs);
  if (mesh.shard.size() > 1)
    return std::pair("parameters and gradients of " + std::to_string(mesh.shard.size()) +
                         " ranks cross between them in every micro-batch",
                     Remedy::graphs_of_one_rank);
  if (options.offload_activations)
    return std::pair("activations are copied between the layers", Remedy::graphs_or_activations);
  if (options.cpu_offload) return std::pair("gradients are moved between the layers", Remedy::graphs_or_cpu_offload);
  if (options.offload_optimizer.place != OffloadConfig::Place::device)
    return std::pair("gradients are moved between the layers", Remedy::graphs_or_offloaded_states);
  return std::nullopt;
}

std::int64_t block_parameters(const Decoder& decoder) {
  std::vector<ParameterSpec> block;
  std::copy_if(decoder.parameters.begin(), decoder.parameters.end(), std::back_inserter(block),
               [](const ParameterSpec& spec) { return spec.block == 0; });
  return std::max<std::int64_t>(1, num_parameters(block));  // of 4 bits: what is multiplied by, not what is stored
}

/// Returns the largest number of tokens of a micro-batch that runs as a CUDA graph; 0: none does. The result depends on
/// sizes alone, so that every run of a job decides alike. CudaGraphs::automatic chooses graphs on a single GPU, where
/// they save 2 % or more: forward and backward of a block are about 36 launches and 6 operations per token and
/// parameter. Between two kernels that wait for each other the GPU idles 1 to 2 us longer than inside a graph, 54 us
/// per block. At 150 TFLOP/s in 16 bits (an eighth of that in float32), 54 us are 2 % of 2^36 tokens x parameters of a
/// block (2^33 in float32). Below 2^32 the launches take the host longer than the kernels take the GPU, so that graphs
/// save more. \throws RequestError that names what rules out CudaGraphs::on
std::int64_t graph_max_tokens(const ShardingOptions& options, const Decoder& decoder, const Mesh& mesh,
                              const Ops& ops) {
  if (options.cuda_graphs == CudaGraphs::off) return 0;
  const auto problem = in_the_way(options, mesh, ops);
  if (options.cuda_graphs == CudaGraphs::on) {
    if (problem) throw RequestError("steps as CUDA graphs: " + problem->first, problem->second);
    return std::numeric_limits<std::int64_t>::max();
  }
  if (problem || mesh.replicate.size() > 1) return 0;
  const bool narrow = c10::elementSize(options.param_dtype.value_or(options.precision)) == 2;
  return (narrow ? kMostWork16 : kMostWork32) / block_parameters(decoder);
}

/// \throws RequestError
void check_offload(const ShardingOptions& options) {
  if (!options.offload_parameters) return;
  if (!options.offload_optimizer.on_disk())
    throw RequestError("offloaded parameters have no disk", Remedy::disk_for_parameters);
  if (stays_gathered(options.sharding))
    throw RequestError("offloaded parameters and a sharding whose parameters stay whole contradict each other",
                       Remedy::parameters_or_sharding);
}

DeviceChoice with_ops(DeviceChoice device) {
  if (device.ops == nullptr && device.backend != nullptr) device.ops = device.backend->make_ops(device.device.index());
  if (device.ops == nullptr) device.ops = {std::shared_ptr<void>(), &host_ops()};
  return device;
}

bool is_multiplied_in_fp8(const ParameterSpec& spec) {
  return spec.is_matrix_of_block() && spec.storage == Storage::model && can_be_fp8(spec.shape[0], spec.shape[1]);
}

/// \throws RequestError on every rank
void check_fp8(ProcessGroup& world, const Ops& ops, const std::vector<ParameterSpec>& parameters) {
  if (std::none_of(parameters.begin(), parameters.end(), is_multiplied_in_fp8))
    throw RequestError(
        "products in fp8 would change nothing: no matrix of this model's blocks has two sides that are multiples of " +
            std::to_string(kFp8Multiple),
        Remedy::of_compute_dtype);
  run_agreed(world, [&] {
    if (const auto problem = ops.fp8_problem(); !problem.empty())
      throw RequestError("rank " + std::to_string(world.rank()) + "'s GPU has no products in fp8 (" + problem + ")",
                         Remedy::fp8_gpu);
  });
}

/// Ends the job on all ranks where a wish for GPUs cannot be kept, or where some ranks alone have a GPU.
/// \param why_not  why this rank has none; empty: it has
/// \throws RequestError on every rank
void agree_on_gpus(RequestedDevice requested, ProcessGroup& world, const std::string& why_not) {
  const auto without = first_problem(world, why_not.empty() ? "" : host_name() + ": " + why_not);
  if (!without) return;
  if (world.size() == 1 && requested == RequestedDevice::automatic) return;
  if (requested == RequestedDevice::cuda)
    throw RequestError(
        "no GPU can be used " +
            (world.size() == 1 ? "here: " + why_not : fmt::format("by rank {} on {}", without->rank, without->text)),
        Remedy::of_device_cuda);
  const auto with = first_problem(world, why_not.empty() ? host_name() : "");
  if (!with) return;
  throw RequestError(
      fmt::format("rank {} ({}) has a GPU, and rank {} has none that can be used, on {}. All ranks of a job compute on "
                  "one kind of device",
                  with->rank, with->text, without->rank, without->text),
      Remedy::one_kind_of_device);
}

/// Chooses this rank's GPU. \throws RequestError
void take_gpu(RequestedDevice requested, ProcessGroup& node, const GpuShare& share, DeviceChoice& choice) {
  const int index = element(share.device, node.rank());
  // Several ranks on one GPU exist for tests.
  if (share.first_without >= 0 && share.num_gpus > 1 && requested == RequestedDevice::automatic) {
    const bool enough = share.num_gpus >= node.size();
    throw RequestError(
        fmt::format(
            "{} ranks on a node with {} GPUs{}", node.size(), share.num_gpus,
            enough ? fmt::format(", but all that local rank {} sees are taken (CUDA_VISIBLE_DEVICES, srun --gpu-bind)",
                                 share.first_without)
                   : ""),
        Remedy::rank_per_gpu);
  }
  choice.backend->set_device(index);
  choice.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  choice.description = "cuda: " + choice.backend->info(index).name;
}

/// \return the properties by which a rank chooses its collectives and their order: NCCL matches them by order alone
std::vector<RankTrait> traits_of(const DeviceChoice& device, const Ops& ops, const Mesh& mesh,
                                 const EngineInput& input) {
  std::vector<RankTrait> traits{{"their program", detail::kDeviceBackendAbi}};
  traits.push_back({"their device", device.backend != nullptr ? "a GPU" : "the CPU"});
  for (const char* name : {"FSDP_CUDA_KERNELS", "FSDP_CUDA_ATTENTION", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE"}) {
    const char* value = std::getenv(name);
    if (device.backend != nullptr)
      traits.push_back({fmt::format("the variable {}", name), value == nullptr ? "no value" : value});
  }
  traits.push_back({"the products that are made as one (another kind of GPU, or FSDP_CUDA_KERNELS)",
                    ops.joins_products() ? "those of matrices with one input" : "none"});
  std::string parts;
  for (const auto* axis : mesh.axes()) parts += fmt::format("{} {};", axis->name, axis->size());
  for (const auto& p : input.parameters) {
    parts += fmt::format("{} {} {} {}{}{}{}{} {};", p.name, fmt::join(p.shape, ","), p.alignment, int{p.trainable},
                         int{p.is_float}, int{p.is_byte}, int{p.is_fp8}, int{p.gathered_in_fp8}, p.same_input);
  }
  for (const auto& unit : input.units) parts += fmt::format("{};", fmt::join(unit, ","));
  traits.push_back(
      {"the parameters of the model or their order", fmt::format("{:016x}", std::hash<std::string>{}(parts))});
  return traits;
}

}  // namespace

DeviceChoice choose_device(RequestedDevice device, ProcessGroup& world, ProcessGroup& node,
                           const std::filesystem::path& driver) {
  // Images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE and NVIDIA_TF32_OVERRIDE, which cuBLAS itself reads.
  ::unsetenv("NVIDIA_TF32_OVERRIDE");
  at::globalContext().setFloat32MatmulPrecision("highest");
  DeviceChoice choice;
  choice.description = "cpu";
  if (device == RequestedDevice::cpu) return choice;
  std::string why_not;
  choice.backend = load_cuda_backend(&why_not);
  std::error_code ignored;
  if (choice.backend == nullptr && std::filesystem::exists(driver, ignored)) choice.unused_gpu = why_not;
  if (choice.backend != nullptr && choice.backend->device_count() == 0) {
    why_not = "the driver shows no GPU to this process";
    choice.backend = nullptr;
  }
  const auto share = share_gpus(node, choice.backend.get());
  agree_on_gpus(device, world, choice.backend == nullptr ? why_not : "");
  if (choice.backend != nullptr) run_agreed(world, [&] { take_gpu(device, node, share, choice); });
  return choice;
}

void allow_tf32(const DeviceChoice& device) {
  if (device.backend == nullptr) throw RequestError("this job computes on CPUs, which have no TF32", Remedy::of_tf32);
  const auto info = device.backend->info(device.device.index());
  if (info.compute_major < 8)
    throw RequestError(info.name + " has no TF32, which GPUs have from compute capability 8.0 on", Remedy::of_tf32);
  at::globalContext().setFloat32MatmulPrecision("high");
}

void warn_of_unused_gpus(ProcessGroup& world, const DeviceChoice& device, const Logger& log) {
  const auto found = first_problem(world, device.unused_gpu);
  if (found && world.rank() == 0) {
    log.warning(fmt::format("rank {} has an NVIDIA driver and no GPU that can be used, and computes on the CPU: {}",
                            found->rank, found->text),
                Remedy::device_meant);
  }
}

EnginePolicy make_policy(const ShardingOptions& options) {
  EnginePolicy policy{options};
  policy.forward_prefetch = options.forward_prefetch.value_or(false);
  policy.cpu_offload = options.cpu_offload || options.offload_optimizer.place != OffloadConfig::Place::device;
  policy.offload_frozen = options.cpu_offload;
  policy.offload_parameters = options.offload_parameters;
  policy.precision.param_dtype = options.param_dtype.value_or(options.precision);
  policy.precision.reduce_dtype = options.reduce_dtype.value_or(options.precision);
  policy.precision.buffer_dtype = options.buffer_dtype.value_or(options.precision);
  policy.precision.master_dtype = options.master_dtype.value_or(at::kFloat);
  return policy;
}

int set_threads(ProcessGroup& node, const Logger& log) {
  const auto count = threads_on_node(node);
  if (!count.warning.empty() && log.rank() == 0) log.warning(count.warning);
  at::set_num_threads(count.threads);
  return count.threads;
}

Mesh make_mesh(ProcessGroup& world, const ShardingOptions& options) {
  return make_mesh(world, options.sharding, options.shard_group_size);
}

ModelRuntime::ModelRuntime(ProcessGroup& world, const ModelConfig& config, const ShardingOptions& options,
                           const DeviceChoice& device, const StepShape& step)
    : world_(world),
      device_(with_ops(device)),
      policy_(make_policy(options)),
      decoder_(make_decoder(config, ops(), {options.lora, options.quantize, options.compute_dtype, step.groups})),
      trainable_(trainable_parameters(decoder_.parameters, tied_names(decoder_.config), options.freeze)) {
  check_offload(options);
  // On the host prefetching gains nothing: shared memory needs no transfer, and other transfers block the host.
  if (!options.forward_prefetch) policy_.forward_prefetch = !ops().on_host();
  policy_.wide_weights = policy_.wide_weights && ops().on_host() && is_upcast(policy_.precision.param_dtype);
  mesh_ = make_mesh(world, options);
  if (asks_for_fp8(options.compute_dtype)) check_fp8(world, ops(), decoder_.parameters);
  EngineInput input;
  for (const auto& layer : decoder_.layers) input.layers.push_back(layer.get());
  input.loss = decoder_.loss.get();
  std::vector<WrapInput> wrap_inputs;
  for (const auto& spec : decoder_.parameters) {
    ParamLayout layout{.name = spec.name,
                       .shape = spec.shape,
                       .alignment = row_alignment(spec),
                       .decay = spec.decay,
                       .trainable = trainable_[input.parameters.size()]};
    layout.is_float = spec.storage == Storage::float32;
    layout.is_byte = spec.storage == Storage::byte;
    layout.is_fp8 = asks_for_fp8(options.compute_dtype) && is_multiplied_in_fp8(spec);
    // DoRA asks for the matrices as they are, and parameters that stay whole do so in their own type.
    layout.gathered_in_fp8 = layout.is_fp8 && layout.trainable && !options.lora.enabled() &&
                             !stays_gathered(policy_.sharding) && !options.offload_parameters;
    layout.same_input = spec.same_input;
    input.parameters.push_back(std::move(layout));
    wrap_inputs.push_back({input.parameters.back().elements(), spec.block});
  }
  input.units = make_units(wrap_inputs, options.wrap);
  num_units_ = input.units.size();
  require_equal_ranks(world, traits_of(device_, ops(), mesh_, input));
  is_host_staged_ = options.host_staged || device_.backend == nullptr;
  mesh_.connect([&](ProcessGroup& group) { return connect(group); });
  input.ops = device_.ops.get();
  input.mesh = &mesh_;
  if (options.offload_optimizer.on_disk()) {
    StoreOptions where;
    if (device_.has_values) where.directory = options.offload_optimizer.directory;
    if (options.offload_optimizer.group_bytes > 0) where.group_bytes = options.offload_optimizer.group_bytes;
    run_agreed(world, [&] { store_ = std::make_unique<TensorStore>(ops(), where); });
    input.store = store_.get();
  }
  input.allow_peer_memory = !options.host_staged;
  input.step = step;
  policy_.graph_max_tokens = graph_max_tokens(options, decoder_, mesh_, ops());
  engine_ = std::make_unique<Engine>(input, policy_);
}

std::shared_ptr<TensorCollectives> ModelRuntime::connect(ProcessGroup& group) const {
  if (is_host_staged_) return make_host_collectives(group, ops());
  if (group.size() == 1) return make_lone_collectives();
  return device_.backend->make_collectives(group, device_.device.index());
}

}  // namespace fsdp
