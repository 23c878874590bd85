#include "lib/tensor/memory_recorder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>

#include <array>
#include <stdexcept>
#include <unordered_map>

namespace fsdp {

struct MemoryRecorder::State {
  SimulatedTraits traits;
  MemoryLog log;
  std::int32_t next_block = 0;
  std::int64_t external_bytes = 0;
  std::unordered_map<const void*, bool> on_host;  ///< by address
  at::Tensor blas_workspace;
};

/// The thread's recorder and what it writes beside each size.
struct MemoryRecorderAccess {
  using State = MemoryRecorder::State;
  std::shared_ptr<State> state;
  MemoryCategory category = MemoryCategory::activations;
  bool on_host = false;
};

namespace {

MemoryRecorderAccess& here() {
  thread_local MemoryRecorderAccess access;
  return access;
}

void add(MemoryRecorderAccess::State& state, std::int64_t bytes, std::int32_t block, MemoryCategory category,
         bool on_host) {
  state.log.records.push_back(
      {bytes, block, static_cast<std::int32_t>(state.log.moments.size()) - 1, category, on_host});
}

/// What a meta tensor's storage holds on to.
struct Block {
  std::shared_ptr<MemoryRecorderAccess::State> state;
  void* address;
  std::int64_t bytes;
  std::int32_t number;
  MemoryCategory category;
  bool on_host;
};

/// Outside of what any process can map: touching it ends the program at once.
void* address_of(std::int32_t block) {
  return reinterpret_cast<void*>((std::uintptr_t{1} << 60) + (static_cast<std::uintptr_t>(block) << 6));
}

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  add(*block->state, -block->bytes, block->number, block->category, block->on_host);
  block->state->on_host.erase(block->address);
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    const auto device = c10::Device(c10::DeviceType::Meta);
    auto& access = here();
    if (access.state == nullptr) return {nullptr, nullptr, &do_nothing, device};
    auto& state = *access.state;
    const auto number = state.next_block++;
    const auto bytes = static_cast<std::int64_t>(n);
    auto block = std::make_unique<Block>(
        Block{access.state, address_of(number), bytes, number, access.category, access.on_host});
    add(state, bytes, number, access.category, access.on_host);
    if (access.on_host) state.on_host.emplace(block->address, true);
    void* address = block->address;
    return {address, block.release(), &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void do_nothing(void*) {}
};

void install_meta_allocator() {
  static const bool done = [] {
    static auto* const allocator = new MetaAllocator;  // never destroyed: tensors may outlive static destruction
    c10::SetAllocator(c10::DeviceType::Meta, allocator, 100);
    return true;
  }();
  (void)done;
}

}  // namespace

std::string_view to_string(MemoryCategory category) {
  constexpr std::array<std::string_view, kNumMemoryCategories> kNames{"parameters", "gradients",      "optimizer",
                                                                      "gathered",   "reduce_buffers", "activations",
                                                                      "logits",     "batch",          "workspace"};
  return kNames.at(static_cast<std::size_t>(category));
}

MemoryRecorder::MemoryRecorder(const SimulatedTraits& traits) : state_(std::make_shared<State>()) {
  if (here().state != nullptr) throw std::logic_error("a thread has one memory recorder at a time");
  install_meta_allocator();
  state_->traits = traits;
  here().state = state_;
}
MemoryRecorder::~MemoryRecorder() {
  state_->blas_workspace.reset();  // it holds on to the state
  here().state = nullptr;
}

const MemoryLog& MemoryRecorder::log() const { return state_->log; }
const SimulatedTraits& MemoryRecorder::traits() const { return state_->traits; }

bool simulating() { return here().state != nullptr; }
const SimulatedTraits& simulated_traits() {
  if (!simulating()) throw std::logic_error("no memory recorder on this thread");
  return here().state->traits;
}
bool simulating_cuda() { return simulating() && here().state->traits.device == SimulatedDevice::cuda; }
void simulate_blas_workspace() {
  if (!simulating_cuda()) return;
  auto& workspace = here().state->blas_workspace;
  if (workspace.defined()) return;
  constexpr std::int64_t kKiB = 1024;
  // CUDABlas.cpp, parseChosenWorkspaceSize(), PyTorch 2.11.
  const std::int64_t bytes =
      simulated_traits().compute_capability >= 90 ? 32 * 1024 * kKiB : (4096 * 2 + 16 * 8) * kKiB;
  const MemoryScope scope(MemoryCategory::workspace);
  workspace = at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kMeta));
}
bool runs_on_host(at::Device device) {
  return device.is_cpu() || (device.is_meta() && simulating() && !simulating_cuda());
}
at::Device host_device() { return at::Device(simulating() ? at::kMeta : at::kCPU); }
bool recorded_on_host(const at::Tensor& tensor) {
  return simulating() && tensor.device().is_meta() && here().state->on_host.contains(tensor.storage().data());
}

at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!simulating()) return at::from_blob(data, sizes, at::TensorOptions(dtype));
  return at::from_blob(
      data, sizes, [](void*) {}, at::TensorOptions(dtype).device(at::kMeta), at::Device(at::kMeta));
}

void record_external(std::int64_t bytes) {
  auto& access = here();
  if (access.state == nullptr) throw std::logic_error("no memory recorder on this thread");
  add(*access.state, bytes, -1, access.category, access.on_host);
}

MemoryScope::MemoryScope(MemoryCategory category, bool on_host) : category_(here().category), on_host_(here().on_host) {
  here().category = category;
  here().on_host = on_host && simulating_cuda();
}
MemoryScope::~MemoryScope() {
  here().category = category_;
  here().on_host = on_host_;
}

void begin_phase(std::string name) {
  auto& access = here();
  if (access.state != nullptr) access.state->log.moments.push_back(std::move(name));
}

}  // namespace fsdp
