#include "lib/runtime/model_runtime.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lib/base/error.hpp"
#include "lib/base/usable_cores.hpp"

namespace fsdp {
namespace {

int parse_checkpointing(const std::string& text) {
  if (text.empty() || text == "none" || text == "false") return 0;
  if (text == "all" || text == "true") return 1;
  if (text.rfind("every:", 0) == 0) {
    char* end = nullptr;
    const long n = std::strtol(text.c_str() + 6, &end, 10);
    if (*end == '\0' && n >= 1 && n <= 1'000'000) return static_cast<int>(n);
  }
  throw UsageError("--activation-checkpointing is '" + text + "', choose from all, none, every:N");
}

DeviceChoice with_ops(DeviceChoice device) {
  if (device.ops == nullptr && device.backend != nullptr) device.ops = device.backend->make_ops(device.device.index());
  if (device.ops == nullptr) device.ops = {std::shared_ptr<void>(), &host_ops()};
  return device;
}

}  // namespace

DeviceChoice choose_device(const std::string& device, int local_rank, int ranks_on_node) {
  if (device != "auto" && device != "cpu" && device != "cuda") {
    throw UsageError("--device is '" + device + "', choose from auto, cpu, cuda");
  }
  DeviceChoice choice;
  choice.description = "cpu";
  if (device == "cpu") return choice;
  std::string why_not;
  auto backend = load_cuda_backend(&why_not);
  if (backend == nullptr) {
    if (device == "cuda") throw UsageError("--device cuda: no GPU can be used here: " + why_not);
    return choice;
  }
  const int count = backend->device_count();
  if (count == 0) {
    if (device == "cuda") throw UsageError("--device cuda: the driver shows no GPU to this process");
    return choice;
  }
  // A launcher may show each rank its own GPU only; several ranks on one GPU exist for tests.
  const int index = local_rank % count;
  if (ranks_on_node > count && count > 1 && device == "auto") {
    throw UsageError(
        fmt::format("{} ranks on a node with {} GPUs: start one rank per GPU, or name --device", ranks_on_node, count));
  }
  backend->set_device(index);
  choice.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  choice.description = "cuda: " + backend->info(index).name;
  choice.backend = std::move(backend);
  return choice;
}

EnginePolicy make_policy(const ShardingOptions& options) {
  EnginePolicy policy;
  policy.sharding = parse_sharding(options.sharding);
  policy.backward_prefetch = parse_backward_prefetch(options.backward_prefetch);
  policy.forward_prefetch = options.forward_prefetch;
  policy.limit_all_gathers = options.limit_all_gathers;
  policy.checkpoint_every = parse_checkpointing(options.activation_checkpointing);
  policy.reduce_every_micro_batch = options.reduce_every_micro_batch;
  policy.cpu_offload = options.cpu_offload;
  const auto preset = parse_float_type(options.precision, "--precision");
  const auto pick = [&](const std::string& text, const char* option) {
    return text.empty() ? preset : parse_float_type(text, option);
  };
  policy.precision.param_dtype = pick(options.param_dtype, "--param-dtype");
  policy.precision.reduce_dtype = pick(options.reduce_dtype, "--reduce-dtype");
  policy.precision.buffer_dtype = pick(options.buffer_dtype, "--buffer-dtype");
  return policy;
}

int set_threads(int ranks_on_node) {
  int threads = std::max(1, usable_cores() / std::max(1, ranks_on_node));
  if (const char* wish = std::getenv("OMP_NUM_THREADS"); wish != nullptr && std::atoi(wish) > 0)
    threads = std::atoi(wish);
  at::set_num_threads(threads);
  return threads;
}

ModelRuntime::ModelRuntime(ProcessGroup& world, const ModelConfig& config, const ShardingOptions& options,
                           const DeviceChoice& device, int accumulation_steps)
    : world_(world), device_(with_ops(device)), policy_(make_policy(options)), decoder_(make_decoder(config, ops())) {
  mesh_ = make_mesh(world, policy_.sharding, options.shard_group_size);
  const bool staged = options.collectives == "host-staged" || device_.backend == nullptr;
  if (options.collectives != "auto" && options.collectives != "host-staged") {
    throw UsageError("--collectives is '" + options.collectives + "', choose from auto, host-staged");
  }
  const auto make = [&](ProcessGroup& group) {
    return staged ? make_host_collectives(group, ops())
                  : device_.backend->make_collectives(group, device_.device.index());
  };
  shard_collectives_ = make(*mesh_.shard);
  replicate_collectives_ = make(*mesh_.replicate);

  EngineInput input;
  for (const auto& layer : decoder_.layers) input.layers.push_back(layer.get());
  input.loss = decoder_.loss.get();
  std::vector<WrapInput> wrap_inputs;
  for (const auto& spec : decoder_.parameters) {
    input.parameters.push_back({spec.name, spec.shape, row_alignment(spec), spec.decay});
    wrap_inputs.push_back({input.parameters.back().elements(), spec.block});
  }
  input.units = make_units(wrap_inputs, parse_wrap(options.wrap));
  num_units_ = input.units.size();
  input.ops = device_.ops.get();
  input.mesh = &mesh_;
  input.shard_collectives = shard_collectives_.get();
  input.replicate_collectives = replicate_collectives_.get();
  input.allow_peer_memory = options.collectives == "auto";
  input.accumulation_steps = accumulation_steps;
  engine_ = std::make_unique<Engine>(input, policy_);
}

}  // namespace fsdp
