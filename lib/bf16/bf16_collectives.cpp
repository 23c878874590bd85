#include "lib/bf16/bf16_collectives.hpp"

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

#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {
namespace {

constexpr int kMostContributors = 100;

int stride(int ranks) { return (ranks + kMostContributors - 1) / kMostContributors; }

using Clock = std::chrono::steady_clock;

/// Makes a bf16 tensor [elements] on `device`; `value(index)` is a whole number and has the period `period`.
template <typename Value>
at::Tensor periodic(std::int64_t elements, std::int64_t period, c10::Device device, const Value& value) {
  auto one = at::empty({period}, at::kBFloat16);
  auto* data = one.template data_ptr<at::BFloat16>();
  for (std::int64_t i = 0; i < period; ++i) data[i] = at::BFloat16(static_cast<float>(value(i)));
  return one.to(device).repeat({(elements + period - 1) / period}).narrow(0, 0, elements);
}

/// Describes the first element of `got` that differs from `expected`; "" when all agree.
/// \param what  "the exact sum"
std::string first_difference(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  const auto bits = [](const at::Tensor& x) { return x.view(x.element_size() == 2 ? at::kShort : at::kInt); };
  if (at::equal(bits(got), bits(expected))) return "";
  const auto got_floats = got.to(at::kCPU, at::kFloat), wanted = expected.to(at::kCPU, at::kFloat);
  const auto* g = got_floats.const_data_ptr<float>();
  const auto* w = wanted.const_data_ptr<float>();
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    if (g[i] != w[i]) return fmt::format("element {} is {}, {} is {}", i, g[i], what, w[i]);
  }
  return "differs, but not in its elements";
}

/// " (check 2 of 3)"; "" for a single one
std::string which_check(int number, int checks) {
  return checks > 1 ? fmt::format(" (check {} of {})", number + 1, checks) : "";
}

/// Calls `check` with the number of the check. Every rank makes all of them. \return what the first wrong one found
template <typename Check>
std::string first_wrong(int checks, const Check& check) {
  std::string wrong;
  for (int number = 0; number < checks; ++number) {
    const auto found = check(number);
    if (!found.empty() && wrong.empty()) wrong = found + which_check(number, checks);
  }
  return wrong;
}

/// Determines the precision of the additions: 256 + 1 + 1 is 258 in float32, but 256 in bf16, where 257 rounds to 256.
/// Each rank in turn contributes the 256, because some orders of addition (a ring starts each part at another rank) add
/// the ones first.
std::string how_it_sums(ProcessGroup& group, Bf16Collectives& reducer, c10::Device device) {
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

class TrainingCollectives final : public Bf16Collectives {
 public:
  TrainingCollectives(std::shared_ptr<TensorCollectives> collectives, std::function<void()> synchronize)
      : collectives_(std::move(collectives)), synchronize_(std::move(synchronize)) {}
  void all_reduce(const at::Tensor& bf16) override {
    collectives_->all_reduce(std::span(&bf16, 1))->wait();
    synchronize_();
  }
  void all_gather(const at::Tensor& shard, const at::Tensor& full) override {
    const TensorGather gather{shard, full};
    collectives_->all_gather(std::span(&gather, 1))->wait();
    synchronize_();
  }
  void reduce_scatter(const at::Tensor& full, const at::Tensor& shard) override {
    const TensorReduce reduce{full, shard};
    collectives_->reduce_scatter(std::span(&reduce, 1))->wait();
    synchronize_();
  }

 private:
  std::shared_ptr<TensorCollectives> collectives_;
  std::function<void()> synchronize_;
};

using Call = std::function<void()>;

/// \return the time of one call on the slowest rank of the group, in seconds
double slowest_seconds(ProcessGroup& group, const Call& call, int repetitions) {
  group.barrier();
  const auto start = Clock::now();
  for (int i = 0; i < repetitions; ++i) call();
  const double local_seconds = seconds_since(start) / repetitions;
  return std::max(1e-9, group.all_reduce(local_seconds, Reduce::max));
}

struct Timing {
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// Times a collective on larger and larger tensors. \param prepare  returns the call on tensors of so many bytes
Timing time_collective(ProcessGroup& group, const CollectiveBudget& budget,
                       const std::function<Call(std::int64_t bytes)>& prepare) {
  // All decisions below use times that all ranks share, so all ranks decide alike.
  Timing timing{std::min<std::int64_t>(budget.bytes, std::int64_t{1} << 20), 0};
  auto call = prepare(timing.bytes);
  slowest_seconds(group, call, 1);  // warm-up: connects the ranks
  timing.seconds = slowest_seconds(group, call, 2);
  while (timing.bytes < budget.bytes && timing.seconds * 4 < budget.seconds) {
    const double room = budget.seconds / (4 * timing.seconds);
    const auto larger = timing.bytes * static_cast<std::int64_t>(std::clamp(room, 2.0, 16.0));
    timing.bytes = std::min(budget.bytes, larger);
    call = prepare(timing.bytes);
    slowest_seconds(group, call, 1);  // warm-up: the device touches the memory of the larger tensor
    timing.seconds = slowest_seconds(group, call, 1);
  }
  const auto repetitions = static_cast<int>(std::clamp(budget.seconds / timing.seconds, 1.0, 50.0));
  timing.seconds = std::min(timing.seconds, slowest_seconds(group, call, repetitions));
  return timing;
}

at::Tensor zeros(std::int64_t elements, at::ScalarType type, c10::Device device) {
  return at::full({elements}, 0.0, at::TensorOptions(type).device(device));
}

/// Elements of each rank's part of a bf16 tensor of so many bytes.
std::int64_t part_of(const ProcessGroup& group, std::int64_t bytes) {
  return std::max<std::int64_t>(1, bytes / 2 / group.size());
}

double bus_speed(const Timing& timing, const ProcessGroup& group) {
  const double n = group.size();  // 0 for one rank, which transfers nothing
  return static_cast<double>(timing.bytes) / timing.seconds * (n - 1) / n / 1e9;
}

class SharedMemoryCollectives final : public Bf16Collectives {
 public:
  SharedMemoryCollectives(ProcessGroup& group, std::unique_ptr<PeerMemory> memory, std::int64_t max_bytes)
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
    sums_.resize(part);
    sum(begin, std::min(elements, begin + part), sums_.data(), slot(group_.size()) + begin * 2);
    arrive();
    std::memcpy(bf16.mutable_data_ptr(), slot(group_.size()), bf16.nbytes());
    arrive();  // all ranks must have read the result before the next call overwrites it
  }

  /// Each rank publishes its shard, and copies those of the others.
  void all_gather(const at::Tensor& shard, const at::Tensor& full) override {
    const auto bytes = static_cast<std::int64_t>(shard.nbytes());
    std::memcpy(slot(group_.rank()), shard.const_data_ptr(), shard.nbytes());
    arrive();
    auto* to = static_cast<std::byte*>(full.mutable_data_ptr());
    for (int r = 0; r < group_.size(); ++r) std::memcpy(to + r * bytes, slot(r), shard.nbytes());
    arrive();
  }

  /// Each rank publishes its tensor, and sums its part of all of them.
  void reduce_scatter(const at::Tensor& full, const at::Tensor& shard) override {
    std::memcpy(slot(group_.rank()), full.const_data_ptr(), full.nbytes());
    arrive();
    const auto begin = group_.rank() * shard.numel();
    sum(begin, begin + shard.numel(), shard.mutable_data_ptr<float>(), nullptr);
    arrive();
  }

 private:
  /// Slots 0 to size() - 1 hold the ranks' tensors, slot size() the result.
  std::byte* slot(int index) const { return memory_->data() + static_cast<std::int64_t>(index) * max_bytes_; }

  /// \param bf16  receives the sums rounded, too; null: it does not
  void sum(std::int64_t begin, std::int64_t end, float* sums, std::byte* bf16) {
    std::vector<const void*> sources;
    for (int r = 0; r < group_.size(); ++r) sources.push_back(slot(r) + begin * 2);
    parallel_for(end - begin, 65536, [&](std::int64_t b, std::int64_t e) {
      const auto& table = kernels::table();
      table.sum_sources(kernels::Type::bf16, sums, sources.data(), group_.size(), false, b, e);
      if (bf16 != nullptr) table.narrow(kernels::Type::bf16, bf16, sums, b, e);
    });
  }

  /// A barrier in the shared memory: counter r counts the arrivals of rank r.
  void arrive() {
    ++arrivals_;
    const auto counter = [this](int r) -> SharedCounter& { return memory_->counter(to_index(r)); };
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

namespace detail {

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

std::unique_ptr<Bf16Collectives> make_bf16_collectives(std::shared_ptr<TensorCollectives> collectives,
                                                       std::function<void()> synchronize) {
  return std::make_unique<TrainingCollectives>(std::move(collectives), std::move(synchronize));
}

ReduceFacts measure_reduce(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                           const CollectiveBudget& budget) {
  const auto timing = time_collective(group, budget, [&](std::int64_t bytes) -> Call {
    return [&collectives, tensor = zeros(bytes / 2, at::kBFloat16, device)] { collectives.all_reduce(tensor); };
  });
  ReduceFacts facts;
  facts.ranks = group.size();
  facts.bytes = timing.bytes;
  facts.bus_gb_per_s = 2 * bus_speed(timing, group);
  facts.wrong = check_reduce(group, collectives, device, timing.bytes / 2, budget.checks);
  facts.sums_in = how_it_sums(group, collectives, device);
  return facts;
}

TransferFacts measure_gather(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                             const CollectiveBudget& budget) {
  const auto timing = time_collective(group, budget, [&](std::int64_t bytes) -> Call {
    const auto part = part_of(group, bytes);
    return [&collectives, shard = zeros(part, at::kBFloat16, device),
            full = zeros(part * group.size(), at::kBFloat16, device)] { collectives.all_gather(shard, full); };
  });
  TransferFacts facts{timing.bytes, bus_speed(timing, group), "", -1};
  const auto wrong = check_gather(group, collectives, device, part_of(group, timing.bytes), budget.checks);
  if (!wrong.empty()) {
    facts.wrong = fmt::format("from rank {}: {}", wrong.front().sender, wrong.front().text);
    facts.sender = wrong.front().sender;
  }
  return facts;
}

TransferFacts measure_scatter(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                              const CollectiveBudget& budget) {
  const auto timing = time_collective(group, budget, [&](std::int64_t bytes) -> Call {
    const auto part = part_of(group, bytes);
    return [&collectives, full = zeros(part * group.size(), at::kBFloat16, device),
            shard = zeros(part, at::kFloat, device)] { collectives.reduce_scatter(full, shard); };
  });
  return {timing.bytes, bus_speed(timing, group),
          check_scatter(group, collectives, device, part_of(group, timing.bytes), budget.checks), -1};
}

std::vector<WrongPart> check_gather(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                                    std::int64_t part, int checks) {
  constexpr std::int64_t kPeriod = 251;  // a prime: no power of two of elements is a multiple of it
  std::vector<std::string> wrong(to_index(group.size()));
  for (int number = 0; number < checks; ++number) {
    const auto shard_of = [&](int rank) {
      return periodic(part, kPeriod, device, [&](std::int64_t i) {
        return (i * 7 + rank * 31 + number) % kPeriod - kPeriod / 2;  // of both signs
      });
    };
    const auto full = zeros(part * group.size(), at::kBFloat16, device);
    collectives.all_gather(shard_of(group.rank()), full);
    for (int rank = 0; rank < group.size(); ++rank) {
      auto& known = wrong[to_index(rank)];
      const auto found = first_difference(full.narrow(0, rank * part, part), shard_of(rank), "what was sent");
      if (known.empty() && !found.empty()) known = found + which_check(number, checks);
    }
  }
  std::vector<WrongPart> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (auto& text = wrong[to_index(rank)]; !text.empty()) parts.push_back({group.world_rank(rank), std::move(text)});
  }
  return parts;
}

std::string check_scatter(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device, std::int64_t part,
                          int checks) {
  const auto period = detail::exact_period(group.size());
  return first_wrong(checks, [&](int number) {
    const auto full = periodic(part * group.size(), period, device, [&](std::int64_t i) {
      return detail::exact_value(group.rank(), group.size(), i + number);
    });
    const auto expected = periodic(part, period, device, [&](std::int64_t i) {
      return detail::exact_sum(group.size(), group.rank() * part + i + number);
    });
    const auto shard = zeros(part, at::kFloat, device);
    collectives.reduce_scatter(full, shard);
    return first_difference(shard, expected.to(at::kFloat), "the exact sum");
  });
}

std::string check_reduce(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device, std::int64_t elements,
                         int checks) {
  const auto period = detail::exact_period(group.size());
  return first_wrong(checks, [&](int number) {
    const auto sum = periodic(elements, period, device, [&](std::int64_t i) {
      return detail::exact_value(group.rank(), group.size(), i + number);
    });
    const auto expected =
        periodic(elements, period, device, [&](std::int64_t i) { return detail::exact_sum(group.size(), i + number); });
    collectives.all_reduce(sum);
    return first_difference(sum, expected, "the exact sum");
  });
}

std::unique_ptr<Bf16Collectives> make_shared_memory_collectives(ProcessGroup& group, std::int64_t max_bytes) {
  const auto slots = static_cast<std::size_t>(group.size()) + 1;
  auto memory = group.peer_memory(static_cast<std::size_t>(max_bytes) * slots, slots);
  if (memory == nullptr) return nullptr;
  return std::make_unique<SharedMemoryCollectives>(group, std::move(memory), max_bytes);
}

}  // namespace fsdp
