#include "lib/engine/fsdp/policy.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::array<std::pair<std::string_view, Sharding>, 6> kShardings{{
    {"full-shard", Sharding::full_shard},
    {"grad-shard", Sharding::grad_shard},
    {"no-shard", Sharding::no_shard},
    {"hybrid-full-shard", Sharding::hybrid_full_shard},
    {"hybrid-grad-shard", Sharding::hybrid_grad_shard},
    {"hybrid-shard", Sharding::hybrid_full_shard},
}};

constexpr std::array<std::pair<std::string_view, BackwardPrefetch>, 3> kPrefetches{{
    {"none", BackwardPrefetch::none},
    {"pre", BackwardPrefetch::pre},
    {"post", BackwardPrefetch::post},
}};

constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 6> kFloats{{
    {"float32", c10::ScalarType::Float},
    {"bf16", c10::ScalarType::BFloat16},
    {"fp16", c10::ScalarType::Half},
    {"fp32", c10::ScalarType::Float},
    {"bfloat16", c10::ScalarType::BFloat16},
    {"float16", c10::ScalarType::Half},
}};

/// kFloats and fp8.
constexpr auto kComputeTypes = [] {
  std::array<std::pair<std::string_view, c10::ScalarType>, kFloats.size() + 1> all;
  std::copy(kFloats.begin(), kFloats.end(), all.begin());
  all.back() = {"fp8", c10::ScalarType::Float8_e4m3fn};
  return all;
}();

constexpr std::array<std::pair<std::string_view, CudaGraphs>, 3> kCudaGraphs{{
    {"auto", CudaGraphs::automatic},
    {"on", CudaGraphs::on},
    {"off", CudaGraphs::off},
}};

template <typename Value, std::size_t N>
Value parse(const std::array<std::pair<std::string_view, Value>, N>& table, std::string_view text,
            std::string_view option) {
  std::string choices;
  for (const auto& [name, value] : table) {
    if (name == text) return value;
    choices += (choices.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError(std::string(option) + " is '" + std::string(text) + "', choose from " + choices);
}

template <typename Value, std::size_t N>
std::string_view name_of(const std::array<std::pair<std::string_view, Value>, N>& table, Value wanted) {
  for (const auto& [name, value] : table) {
    if (value == wanted) return name;
  }
  return "?";
}

}  // namespace

bool gathers_again_in_backward(Sharding sharding) {
  return sharding == Sharding::full_shard || sharding == Sharding::hybrid_full_shard;
}

bool is_hybrid(Sharding sharding) {
  return sharding == Sharding::hybrid_full_shard || sharding == Sharding::hybrid_grad_shard;
}

Sharding parse_sharding(std::string_view text) { return parse(kShardings, text, "--sharding"); }
std::string_view to_string(Sharding sharding) { return name_of(kShardings, sharding); }
BackwardPrefetch parse_backward_prefetch(std::string_view text) {
  return parse(kPrefetches, text, "--backward-prefetch");
}
std::string_view to_string(BackwardPrefetch prefetch) { return name_of(kPrefetches, prefetch); }

CudaGraphs parse_cuda_graphs(std::string_view text) { return parse(kCudaGraphs, text, "--cuda-graphs"); }

int parse_activation_checkpointing(std::string_view text) {
  if (text.empty() || text == "none" || text == "false") return 0;
  if (text == "all" || text == "true") return 1;
  if (text.starts_with("every:")) {
    const auto number = text.substr(6);
    int every = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), every);
    if (error == std::errc() && end == number.data() + number.size() && every >= 1 && every <= 1'000'000) return every;
  }
  throw UsageError("--activation-checkpointing is '" + std::string(text) + "', choose from all, none, every:N");
}

std::string activation_checkpointing_name(int every) {
  if (every <= 1) return every == 0 ? "none" : "all";
  return "every:" + std::to_string(every);
}

c10::ScalarType parse_float_type(std::string_view text, std::string_view option) {
  return parse(kFloats, text, option);
}
c10::ScalarType parse_compute_type(std::string_view text, std::string_view option) {
  return parse(kComputeTypes, text, option);
}
std::string_view float_type_name(c10::ScalarType type) { return name_of(kFloats, type); }

}  // namespace fsdp
