#pragma once
// The user's choices about sharding, precision and scheduling, as plain structs.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/types/named_values.hpp"

namespace fsdp {

/// Names follow FSDP1 (torch.distributed.fsdp.ShardingStrategy); ZeRO stage in brackets.
enum class Sharding {
  full_shard,       ///< parameters, gradients, optimizer state sharded; gathered twice per micro-batch (ZeRO-3)
  grad_shard,       ///< gathered once, kept until the backward is done (ZeRO-2; FSDP1's SHARD_GRAD_OP)
  optimizer_shard,  ///< parameters stay whole, gathered once per step; gradients are whole until the step ends (ZeRO-1)
  no_shard,         ///< replicated, gradients all-reduced (DDP)
  hybrid_full_shard,  ///< full_shard inside a group of ranks, replicated across groups
  hybrid_grad_shard   ///< grad_shard inside a group of ranks, replicated across groups
};

enum class BackwardPrefetch { none, pre, post };

enum class CudaGraphs : std::uint8_t { automatic, on, off };

struct MixedPrecision {
  c10::ScalarType param_dtype = c10::ScalarType::Float;   ///< gathered parameters and activations
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;  ///< gradients on the wire; always summed in float32 on CPUs
  c10::ScalarType buffer_dtype = c10::ScalarType::Float;
  c10::ScalarType master_dtype = c10::ScalarType::Float;  ///< weights that the optimizer updates

  /// True when gradients pass through fp16, in which small ones would underflow.
  bool needs_loss_scale() const {
    return param_dtype == c10::ScalarType::Half || reduce_dtype == c10::ScalarType::Half;
  }
};

/// The choices that the engine takes from the user as they are.
struct ShardingPolicy {
  Sharding sharding = Sharding::full_shard;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool limit_all_gathers = true;          ///< at most two units gathered or on their way, beside the root
  int checkpoint_every = 0;               ///< recompute every n-th block's activations in the backward; 0: none
  bool offload_activations = false;       ///< inputs of these blocks are on the host between forward and backward
  bool reduce_every_micro_batch = false;  ///< accumulate sharded gradients: less memory, a reduction per micro-batch
  bool wide_weights = false;              ///< also keep 16-bit weights in float32, for CPUs without 16-bit GEMM
};

struct EnginePolicy : ShardingPolicy {
  bool forward_prefetch = false;
  bool cpu_offload = false;         ///< master weights, gradients and optimizer state on the host
  bool offload_parameters = false;  ///< rows of trained parameters are in the store between all-gathers, not in memory
  bool offload_frozen = false;      ///< shards of frozen parameters are on the host, too, between all-gathers
  /// Micro-batches of at most this many tokens run as CUDA graphs if the device supports graphs; 0: none do.
  std::int64_t graph_max_tokens = 0;
  MixedPrecision precision = {};
};

bool gathers_again_in_backward(Sharding sharding);  ///< full_shard and its hybrid
bool is_hybrid(Sharding sharding);
bool stays_gathered(Sharding sharding);  ///< optimizer_shard: parameters are whole between steps, too

inline constexpr std::array kShardingNames{
    NamedValue<Sharding>{"full-shard", Sharding::full_shard},
    NamedValue<Sharding>{"grad-shard", Sharding::grad_shard},
    NamedValue<Sharding>{"optimizer-shard", Sharding::optimizer_shard},
    NamedValue<Sharding>{"no-shard", Sharding::no_shard},
    NamedValue<Sharding>{"hybrid-full-shard", Sharding::hybrid_full_shard},
    NamedValue<Sharding>{"hybrid-grad-shard", Sharding::hybrid_grad_shard},
    NamedValue<Sharding>{"hybrid-shard", Sharding::hybrid_full_shard},
};
/// All strategies. One without a name cannot be chosen, and gathers_again_in_backward() does not compile
/// without its case.
inline constexpr auto kShardings = distinct_values<kShardingNames>();
static_assert(kShardings.size() == static_cast<std::size_t>(kShardings.back()) + 1, "a strategy has no name");
inline constexpr std::array kPrefetchNames{
    NamedValue<BackwardPrefetch>{"none", BackwardPrefetch::none},
    NamedValue<BackwardPrefetch>{"pre", BackwardPrefetch::pre},
    NamedValue<BackwardPrefetch>{"post", BackwardPrefetch::post},
};
inline constexpr std::array kCudaGraphsNames{
    NamedValue<CudaGraphs>{"auto", CudaGraphs::automatic},
    NamedValue<CudaGraphs>{"on", CudaGraphs::on},
    NamedValue<CudaGraphs>{"off", CudaGraphs::off},
};
inline constexpr std::array kFloatTypeNames{
    NamedValue<c10::ScalarType>{"float32", c10::ScalarType::Float},
    NamedValue<c10::ScalarType>{"bf16", c10::ScalarType::BFloat16},
    NamedValue<c10::ScalarType>{"fp16", c10::ScalarType::Half},
    NamedValue<c10::ScalarType>{"fp32", c10::ScalarType::Float},
    NamedValue<c10::ScalarType>{"bfloat16", c10::ScalarType::BFloat16},
    NamedValue<c10::ScalarType>{"float16", c10::ScalarType::Half},
};
/// Types of masters and moments: kFloatTypeNames without fp16, whose range is too small for them.
inline constexpr std::array kStateTypeNames{kFloatTypeNames[0], kFloatTypeNames[1], kFloatTypeNames[3],
                                            kFloatTypeNames[4]};
/// kFloatTypeNames, and fp8 (lib/compute/ops/products/fp8.hpp): Float8_e4m3fn stands for it.
inline constexpr auto kComputeTypeNames = [] {
  std::array<NamedValue<c10::ScalarType>, kFloatTypeNames.size() + 1> all{};
  std::copy(kFloatTypeNames.begin(), kFloatTypeNames.end(), all.begin());
  all.back() = {"fp8", c10::ScalarType::Float8_e4m3fn};
  return all;
}();

inline std::string_view to_string(Sharding sharding) { return name_of(kShardingNames, sharding); }
inline std::string_view to_string(BackwardPrefetch prefetch) { return name_of(kPrefetchNames, prefetch); }
inline std::string_view float_type_name(c10::ScalarType type) { return name_of(kFloatTypeNames, type); }

inline constexpr const char* kCheckpointingChoices = "all, none, every:N";
/// none, all or every:N as the N of every N-th block; 0: none. \throws RequestError naming the choices
int parse_activation_checkpointing(std::string_view text, std::string_view option = "activation-checkpointing");
std::string activation_checkpointing_name(int every);
}  // namespace fsdp
