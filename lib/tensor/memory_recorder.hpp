#pragma once
// Memory of a run that does not happen: meta tensors stand for the real ones, and every allocation is written down.
//
// While a MemoryRecorder lives, meta tensors that its thread makes have an address (never to be touched) and are
// recorded with their true size. The code under it runs the very schedule of a real run; what computes on data is
// skipped (simulating()), and what a device's operators allocate inside is allocated by shape alone.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// What a piece of memory is for.
enum class MemoryCategory {
  parameters,      ///< masters, and this rank's rows in the gathered dtype
  gradients,       ///< float32 shards
  optimizer,       ///< AdamW's two moments
  gathered,        ///< parameters of other ranks' rows
  reduce_buffers,  ///< a unit's full gradients on their way to the shards
  activations,     ///< outputs of layers, and what they keep for their backward
  logits,          ///< head and loss
  batch,           ///< ids and targets
  workspace        ///< libraries' own
};
inline constexpr int kNumMemoryCategories = 9;
std::string_view to_string(MemoryCategory category);

/// What meta tensors stand for: host tensors on which the CPU kernels run, or a GPU's.
enum class SimulatedDevice { cpu, cuda };

/// One allocation (bytes > 0) or its end (bytes < 0), in the order in which they happened.
struct MemoryRecord {
  std::int64_t bytes;
  std::int32_t block;  ///< counted from 0, one number per allocation
  std::int32_t phase;  ///< index into MemoryLog::moments
  MemoryCategory category;
  bool on_host;  ///< cuda only: memory of the host (offloaded states, masks)
};

struct MemoryLog {
  std::vector<MemoryRecord> records;
  std::vector<std::string> moments{"start"};  ///< what the run was doing: "forward block 3"
};

/// Facts of the simulated device that decide what its operators allocate.
struct SimulatedTraits {
  SimulatedDevice device = SimulatedDevice::cpu;
  int compute_capability = 80;  ///< cuda: 10 * major + minor
  int multiprocessors = 108;    ///< cuda
  int threads = 1;              ///< cpu: of a rank
};

/// Records the allocations of meta tensors made by this thread, from construction to destruction. One at a time.
class MemoryRecorder {
 public:
  explicit MemoryRecorder(const SimulatedTraits& traits);
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;
  ~MemoryRecorder();

  const MemoryLog& log() const;
  const SimulatedTraits& traits() const;

 private:
  friend struct MemoryRecorderAccess;
  struct State;
  std::shared_ptr<State> state_;
};

/// True while a recorder lives on this thread: nothing may read or write tensors' data.
bool simulating();
/// \pre simulating()
const SimulatedTraits& simulated_traits();
/// True when meta tensors stand for a GPU's here.
bool simulating_cuda();
/// Has the simulated GPU's cuBLAS take its workspace, once in a run: PyTorch allocates it at the first product and
/// keeps it. Does nothing elsewhere.
void simulate_blas_workspace();
/// True for host memory, and for meta tensors that stand for it: the CPU kernels are what runs.
bool runs_on_host(at::Device device);
/// The host, or what stands for it here.
at::Device host_device();
/// True when the tensor's memory was recorded as the host's beside a simulated GPU.
bool recorded_on_host(const at::Tensor& tensor);

/// A tensor over memory that something else owns.
at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype);

/// Memory of a simulated run that ATen does not allocate (shared windows); negative when it goes.
void record_external(std::int64_t bytes);

/// What this thread's allocations are for, from construction to destruction.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category) : MemoryScope(category, false) {}
  /// \param on_host  beside a simulated GPU: this is the host's memory
  MemoryScope(MemoryCategory category, bool on_host);
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  ~MemoryScope();

 private:
  MemoryCategory category_;
  bool on_host_;
};

/// Names what happens from now on. \pre simulating()
void begin_phase(std::string name);

}  // namespace fsdp
