// A bf16 all-reduce through memory that all ranks of a node share.

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/bf16/reduce.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {
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
    counter(group_.rank()).value.store(arrivals_, std::memory_order_release);
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
