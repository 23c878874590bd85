// A bf16 all-reduce through memory that all ranks of a node address.

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

  /// Every rank shows its tensor, sums a part of all of them in float32 in rank order, and takes over the other parts.
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
    arrive();  // nobody writes the next tensor before all have read this one
  }

 private:
  /// Slot size() is the result's.
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

  /// A barrier in the memory itself: counter r holds how often rank r has arrived.
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
