#include "lib/bf16/reduce.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "lib/base/elapsed.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {
namespace detail {
namespace {

constexpr int kMostContributors = 100;

int stride(int ranks) { return (ranks + kMostContributors - 1) / kMostContributors; }

}  // namespace

int exact_value(int rank, int ranks, std::int64_t index) {
  if ((rank + index) % stride(ranks) != 0) return 0;
  return static_cast<int>((index * 7 + rank * std::int64_t{3}) % 5) - 2;
}

int exact_sum(int ranks, std::int64_t index) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += exact_value(rank, ranks, index);
  return sum;
}

std::int64_t exact_period(int ranks) { return std::int64_t{5} * stride(ranks); }

int pair_color(int node, int nodes, int round) {
  if (round == 2) return node == 0 || node == nodes - 1 ? 0 : 1 + node;
  // Nodes at even places pair with the next place; with an odd number of nodes the last place stays alone.
  const int place = (node + nodes - round) % nodes;
  return place / 2;
}

}  // namespace detail

namespace {

using Clock = std::chrono::steady_clock;

/// Makes a bf16 tensor [elements] on `device`; `value(index)` has the period `period`.
template <typename Value>
at::Tensor periodic(std::int64_t elements, std::int64_t period, c10::Device device, const Value& value) {
  auto tensor = at::empty({elements}, at::kBFloat16);
  auto* data = tensor.data_ptr<at::BFloat16>();
  for (std::int64_t i = 0; i < elements; ++i) {
    data[i] = i < period ? at::BFloat16(static_cast<float>(value(i))) : data[i - period];
  }
  return tensor.to(device);
}

/// Describes the first element of `sum` that differs from `expected`; "" when all agree.
std::string first_difference(const at::Tensor& sum, const at::Tensor& expected) {
  if (at::equal(sum, expected)) return "";
  const auto got = sum.cpu();
  const auto wanted = expected.cpu();
  const auto* g = got.data_ptr<at::BFloat16>();
  const auto* w = wanted.data_ptr<at::BFloat16>();
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    if (static_cast<float>(g[i]) != static_cast<float>(w[i])) {
      return fmt::format("element {} is {}, the exact sum is {}", i, static_cast<float>(g[i]),
                         static_cast<float>(w[i]));
    }
  }
  return "differs, but not in its elements";
}

/// Determines the precision of the additions: 256 + 1 + 1 is 258 in float32, but 256 in bf16, where 257 rounds to 256.
/// Each rank in turn contributes the 256, because some orders of addition (a ring starts each part at another rank) add
/// the ones first.
std::string how_it_sums(ProcessGroup& group, Bf16Reducer& reducer, c10::Device device) {
  const int ranks = group.size();
  if (ranks < 3) return "";
  constexpr float kLarge = 256;
  const float right = static_cast<float>(at::BFloat16(kLarge + static_cast<float>(ranks - 1)));
  const std::int64_t elements = std::int64_t{1024} * ranks;
  const auto probe =
      periodic(elements, ranks, device, [&](std::int64_t i) { return i % ranks == group.rank() ? kLarge : 1.0F; });
  reducer.all_reduce(probe);
  return at::equal(probe, at::full({elements}, right, probe.options())) ? "float32" : "bf16";
}

class CollectiveReducer final : public Bf16Reducer {
 public:
  CollectiveReducer(std::unique_ptr<TensorCollectives> collectives, std::function<void()> synchronize)
      : collectives_(std::move(collectives)), synchronize_(std::move(synchronize)) {}
  void all_reduce(const at::Tensor& bf16) override {
    collectives_->all_reduce(std::span(&bf16, 1))->wait();
    synchronize_();
  }

 private:
  std::unique_ptr<TensorCollectives> collectives_;
  std::function<void()> synchronize_;
};

/// \return the time of one call on the slowest rank of the group, in seconds
double slowest_seconds(ProcessGroup& group, Bf16Reducer& reducer, const at::Tensor& tensor, int repetitions) {
  group.barrier();
  const auto start = Clock::now();
  for (int i = 0; i < repetitions; ++i) reducer.all_reduce(tensor);
  const double mine = seconds_since(start) / repetitions;
  return std::max(1e-9, group.all_reduce(mine, Reduce::max));
}

}  // namespace

std::unique_ptr<Bf16Reducer> make_collective_reducer(std::unique_ptr<TensorCollectives> collectives,
                                                     std::function<void()> synchronize) {
  return std::make_unique<CollectiveReducer>(std::move(collectives), std::move(synchronize));
}

ReduceFacts measure_reduce(ProcessGroup& group, Bf16Reducer& reducer, c10::Device device, const ReduceBudget& budget) {
  ReduceFacts facts;
  facts.ranks = group.size();
  // Both decisions below use times that all ranks share, so all ranks decide alike.
  std::int64_t bytes = std::min<std::int64_t>(budget.bytes, std::int64_t{1} << 20);
  const auto zeros = [&](std::int64_t n) {
    return at::full({n / 2}, 0.0, at::TensorOptions(at::kBFloat16).device(device));
  };
  auto tensor = zeros(bytes);
  slowest_seconds(group, reducer, tensor, 1);  // warm-up: connects the ranks
  double seconds = slowest_seconds(group, reducer, tensor, 2);
  while (bytes < budget.bytes && seconds * 4 < budget.seconds) {
    const double room = budget.seconds / (4 * seconds);
    bytes = std::min<std::int64_t>(budget.bytes, bytes * static_cast<std::int64_t>(std::clamp(room, 2.0, 16.0)));
    tensor = zeros(bytes);
    slowest_seconds(group, reducer, tensor, 1);  // warm-up: the device touches the memory of the larger tensor
    seconds = slowest_seconds(group, reducer, tensor, 1);
  }
  seconds = std::min(seconds, slowest_seconds(group, reducer, tensor,
                                              static_cast<int>(std::clamp(budget.seconds / seconds, 1.0, 50.0))));
  facts.bytes = bytes;
  const double n = group.size();
  // The formula gives 0 for one rank, which transfers nothing.
  facts.bus_gb_per_s = static_cast<double>(bytes) / seconds * 2 * (n - 1) / n / 1e9;

  const auto period = detail::exact_period(group.size());
  const auto sum = periodic(bytes / 2, period, device,
                            [&](std::int64_t i) { return detail::exact_value(group.rank(), group.size(), i); });
  const auto expected =
      periodic(bytes / 2, period, device, [&](std::int64_t i) { return detail::exact_sum(group.size(), i); });
  reducer.all_reduce(sum);
  facts.wrong = first_difference(sum, expected);
  facts.sums_in = how_it_sums(group, reducer, device);
  return facts;
}

namespace {

class SharedMemoryReducer final : public Bf16Reducer {
 public:
  SharedMemoryReducer(ProcessGroup& group, std::unique_ptr<PeerMemory> memory, std::int64_t max_bytes)
      : group_(group), memory_(std::move(memory)), max_bytes_(max_bytes) {}

  /// Each rank publishes its tensor, sums its part of all tensors in float32 in rank order, and then copies the parts
  /// that the other ranks summed.
  void all_reduce(const at::Tensor& bf16) override {
    TORCH_CHECK(bf16.is_cpu() && static_cast<std::int64_t>(bf16.nbytes()) <= max_bytes_, "tensor too large");
    const auto elements = bf16.numel();
    std::memcpy(slot(group_.rank()), bf16.const_data_ptr(), bf16.nbytes());
    arrive();
    const auto part = (elements + group_.size() - 1) / group_.size();
    const auto begin = std::min(elements, part * group_.rank());
    sum(begin, std::min(elements, begin + part));
    arrive();
    std::memcpy(bf16.mutable_data_ptr(), slot(group_.size()), bf16.nbytes());
    arrive();  // all ranks must have read the result before the next call overwrites it
  }

 private:
  /// Slots 0 to size() - 1 hold the ranks' tensors, slot size() the result.
  std::byte* slot(int index) const { return memory_->data() + static_cast<std::int64_t>(index) * max_bytes_; }

  void sum(std::int64_t begin, std::int64_t end) {
    std::vector<const void*> sources;
    for (int r = 0; r < group_.size(); ++r) sources.push_back(slot(r) + begin * 2);
    const auto elements = end - begin;
    sums_.resize(static_cast<std::size_t>(elements));
    parallel_for(elements, 65536, [&](std::int64_t b, std::int64_t e) {
      const auto& table = kernels::table();
      table.sum_sources(kernels::Type::bf16, sums_.data(), sources.data(), group_.size(), false, b, e);
      table.narrow(kernels::Type::bf16, slot(group_.size()) + begin * 2, sums_.data(), b, e);
    });
  }

  /// A barrier in the shared memory: counter r counts the arrivals of rank r.
  void arrive() {
    ++arrivals_;
    const auto counter = [this](int r) -> SharedCounter& { return memory_->counter(static_cast<std::size_t>(r)); };
    counter(group_.rank()).raise(arrivals_);
    for (int r = 0; r < group_.size(); ++r) wait_for_counter(group_, counter(r), arrivals_, r, "a bf16 all-reduce");
  }

  ProcessGroup& group_;
  std::unique_ptr<PeerMemory> memory_;
  std::int64_t max_bytes_;
  std::uint64_t arrivals_ = 0;
  std::vector<float> sums_;
};

}  // namespace

std::unique_ptr<Bf16Reducer> make_shared_memory_reducer(ProcessGroup& group, std::int64_t max_bytes) {
  const auto slots = static_cast<std::size_t>(group.size()) + 1;
  auto memory = group.peer_memory(static_cast<std::size_t>(max_bytes) * slots, slots);
  if (memory == nullptr) return nullptr;
  return std::make_unique<SharedMemoryReducer>(group, std::move(memory), max_bytes);
}

}  // namespace fsdp
