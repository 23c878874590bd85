#include "lib/engine/runtime/graph_choice.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMostWork16 = std::int64_t{1} << 33, kMostWork32 = std::int64_t{1} << 30;

std::string in_the_way(const ShardingOptions& options, const Mesh& mesh, const Ops& ops) {
  if (ops.recorder() == nullptr) return "it needs a GPU and this program's CUDA kernels";
  if (mesh.shard->size() > 1)
    return "parameters and gradients of " + std::to_string(mesh.shard->size()) +
           " ranks cross between them in every micro-batch: use one rank or --sharding no-shard";
  if (options.cpu_offload) return "--cpu-offload moves gradients between the layers: leave one of the two out";
  if (options.offload_optimizer.place != OffloadConfig::Place::device)
    return "--offload-optimizer moves gradients between the layers: leave one of the two out";
  return {};
}

std::int64_t block_parameters(const Decoder& decoder) {
  std::vector<ParameterSpec> block;
  std::copy_if(decoder.parameters.begin(), decoder.parameters.end(), std::back_inserter(block),
               [](const ParameterSpec& spec) { return spec.block == 0; });
  return std::max<std::int64_t>(1, num_parameters(block));  // of 4 bits: what is multiplied by, not what is stored
}

}  // namespace

std::int64_t recorded_tokens(const ShardingOptions& options, const Decoder& decoder, const Mesh& mesh, const Ops& ops) {
  if (options.cuda_graphs == CudaGraphs::off) return 0;
  const auto problem = in_the_way(options, mesh, ops);
  if (options.cuda_graphs == CudaGraphs::on) {
    if (!problem.empty()) throw UsageError("--cuda-graphs on: " + problem);
    return std::numeric_limits<std::int64_t>::max();
  }
  if (!problem.empty() || mesh.replicate->size() > 1) return 0;
  const bool narrow = c10::elementSize(options.param_dtype.value_or(options.precision)) == 2;
  return (narrow ? kMostWork16 : kMostWork32) / block_parameters(decoder);
}

}  // namespace fsdp
