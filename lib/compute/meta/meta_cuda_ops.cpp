// GPU memory that ATen's operators allocate, by shape, for operators without a meta kernel or with temporary buffers on
// the device. Other operators run on meta tensors unchanged.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>

#include "lib/compute/meta/meta_attention.hpp"
#include "lib/compute/meta/meta_ops.hpp"
#include "lib/compute/ops/attention/query_blocks.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/compute/ops/fused_kernels.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/compute/tensor/torch_compat.hpp"

namespace fsdp {
namespace {

std::int64_t last_power_of_two(std::int64_t n) {
  return std::int64_t{1} << (std::bit_width(static_cast<std::uint64_t>(n)) - 1);
}

struct ReductionRoom {
  std::int64_t bytes = 0;
  std::int64_t semaphore_bytes = 0;
};

/// Temporary buffer of a float32 sum over the rows of a contiguous matrix [rows, columns] that several thread blocks
/// share: setReduceConfig() and ReduceConfig of aten/src/ATen/native/cuda/Reduce.cuh, PyTorch 2.11.
ReductionRoom column_sum_room(const GpuSpec& gpu, std::int64_t rows, std::int64_t columns) {
  if (rows < 1 || columns < 1) return {};
  constexpr std::int64_t kMaxThreads = 512, kWarp = 32, kMinValues = 16, kMaxValues = 256;
  const std::int64_t vector = columns % 4 == 0 ? 4 : (columns % 2 == 0 ? 2 : 1);
  const auto threads = kMaxThreads / vector;
  const auto wide = last_power_of_two(std::min(columns / vector, threads));
  const auto high = last_power_of_two(std::min(rows, threads));
  const auto block_height = std::min(high, threads / std::min(wide, kWarp));
  const auto block_width = std::min(wide, threads / block_height);
  if (rows < std::min(block_height * kMinValues, kMaxValues)) return {};  // not even split across warps
  const auto values = ceil_div(rows, block_height);                       // per thread
  const auto grid = ceil_div(columns / vector, block_width);
  const auto capability = gpu.compute_capability;
  const std::int64_t threads_at_once = capability == 75                                            ? 1024
                                       : (capability > 80 && capability < 90) || capability >= 120 ? 1536
                                                                                                   : 2048;
  const auto blocks_at_once = gpu.multiprocessors * (threads_at_once / (block_width * block_height));
  if (values < kMaxValues || grid > blocks_at_once) return {};
  const auto blocks =
      std::max(std::min(ceil_div(blocks_at_once, grid), ceil_div(values, kMinValues)), ceil_div(values, kMaxValues));
  if (blocks <= 1) return {};
  constexpr std::int64_t kSum_bytes = 4;
  return {kSum_bytes * columns * blocks * block_width * vector, 4 * grid};
}

/// Keeps both tensors alive until wait(), as the device's copies do.
class HeldTransfer final : public Transfer {
 public:
  HeldTransfer(at::Tensor to, at::Tensor from, std::shared_ptr<WorkLog> log, int id)
      : to_(std::move(to)), from_(std::move(from)), log_(std::move(log)), id_(id) {}
  void wait() override {
    to_.reset();
    from_.reset();
    log_->wait(id_);
  }

 private:
  at::Tensor to_, from_;
  std::shared_ptr<WorkLog> log_;
  int id_;
};

/// Fused kernels allocate nothing.
class NoKernels final : public fused::Kernels {
 public:
#define FSDP_DEFINE(name, Pass) \
  void name(const fused::Pass&) const override {}
  FSDP_FUSED_KERNELS(FSDP_DEFINE)
#undef FSDP_DEFINE
};

/// \return kernels if this build's CUDA back end has them; otherwise null
std::shared_ptr<const fused::Kernels> make_no_kernels() {
  return FSDP_CUDA_KERNELS != 0 && wants_fused_kernels() ? std::make_shared<NoKernels>() : nullptr;
}

/// Speed of large fp8 products relative to bf16: on an H100, 1200 to 1300 of 1979 TFLOP/s against 650 to 750 of 989.
constexpr double kFp8Speedup = 1.8;
/// The same with exact sums, which take 1.1 to 1.2 times as long on Hopper (github.com/pytorch/ao/issues/2377).
constexpr double kFp8ExactSpeedup = kFp8Speedup / 1.15;

class NothingToDo final : public RecordedWork {
 public:
  void run() override {}
};

class MetaCudaOps final : public DeviceOps, private WorkRecorder {
 public:
  MetaCudaOps(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work, GpuSpec gpu)
      : DeviceOps(at::kMeta, make_no_kernels(), detail::WorkCounter(std::move(work), 1)),
        place_(std::move(tape)),
        gpu_(std::move(gpu)) {}

  at::Device host() const override { return at::kMeta; }
  const WorkRecorder* recorder() const override { return has_kernels() ? this : nullptr; }
  std::int64_t logits_bytes() const override { return has_kernels() ? logits_bytes_of_gpu(gpu_.total_bytes) : 0; }
  std::string fp8_problem() const override { return gpu_fp8_problem(gpu_.compute_capability); }
  bool is_on_host(const at::Tensor& x) const override { return place_.tape().is_on_host(x); }
  at::Tensor to_device(const at::Tensor& x) const override {
    if (x.is_cpu()) return at::empty(x.sizes(), x.options().device(at::kMeta));  // sample keys are real host tensors
    return is_on_host(x) ? at::empty_like(x) : x;
  }
  std::unique_ptr<Transfer> start_transfer(const at::Tensor& to, const at::Tensor& from) const override {
    if (to.scalar_type() != from.scalar_type()) return nullptr;
    TransferWork copy;
    copy.kind = TransferWork::Kind::to_host;
    copy.bytes = detail::bytes_of({&from});
    return std::make_unique<HeldTransfer>(to, from, work_.shared_log(), work_.log().start(copy));
  }
  at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const override {
    return place_.tensor_at(data, sizes, dtype);
  }
  void count_shared_memory(std::int64_t bytes) const override { place_.tape().record_external(bytes); }
  void repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const override {
    work_.repeat(n, detail::MetaDevice::kRepeats, body);
  }
  void launch(std::int64_t, std::int64_t, const std::function<void(std::int64_t, std::int64_t)>&) const override {}

 protected:
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                           std::unique_ptr<AttentionState>* state) const override {
    const auto kernel = choose_gpu_attention(traits(), s, qkv_NC.scalar_type());
    if (s.rows == 0 || kernel >= GpuAttention::blocks) {
      count_between_products(qkv_NC, s, false);
      return DeviceOps::row_attention(qkv_NC, s, state);
    }
    work_.add(detail::attention_work(qkv_NC, s, false));
    auto saved = std::make_unique<AttentionState>();
    auto out_ND = allocate_gpu_attention(kernel, gpu_, qkv_NC, s, state != nullptr, *saved);
    if (state != nullptr) *state = std::move(saved);
    return out_ND;
  }
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& s, std::unique_ptr<AttentionState> state) const override {
    const auto kernel = choose_gpu_attention(traits(), s, qkv_NC.scalar_type());
    if (s.rows == 0 || kernel >= GpuAttention::blocks) {
      count_between_products(qkv_NC, s, true);
      return DeviceOps::row_attention_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state));
    }
    work_.add(detail::attention_work(qkv_NC, s, true));
    return allocate_gpu_attention_backward(kernel, gpu_, qkv_NC, s, std::move(state));
  }
  at::Tensor packed_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                              std::unique_ptr<AttentionState>* state) const override {
    if (!packs_by_flash(traits(), s, qkv_NC.scalar_type())) return DeviceOps::packed_attention(qkv_NC, s, state);
    work_.add(detail::attention_work(qkv_NC, s, false));
    auto saved = std::make_unique<AttentionState>();
    auto out_ND = allocate_packed_flash(qkv_NC, s, *saved);
    if (state != nullptr) *state = std::move(saved);
    return out_ND;
  }
  at::Tensor packed_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                       const at::Tensor& out_ND, const AttentionShape& s,
                                       std::unique_ptr<AttentionState> state) const override {
    if (!packs_by_flash(traits(), s, qkv_NC.scalar_type()))
      return DeviceOps::packed_attention_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state));
    work_.add(detail::attention_work(qkv_NC, s, true));
    return allocate_packed_flash_backward(qkv_NC, s, std::move(state));
  }
  void plain_adamw(const AdamWUpdate& update) const override { place_.adamw(update); }
  std::vector<double> read(const at::Tensor& values) const override {
    return std::vector<double>(static_cast<std::size_t>(values.numel()));
  }
  /// PyTorch allocates cuBLAS's workspace at the first product and keeps it.
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    work_.add(detail::product_work(out, a, b, add));
    take_blas_workspace();
  }
  void biased_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                      const at::Tensor& bias) const override {
    if (!out.is_contiguous() || out.size(0) < 2) return DeviceOps::biased_product(out, a, b, bias);
    product(out, a, b, false);
    take_lt_workspace();
  }
  void take_blas_workspace() const {
    if (blas_workspace_.defined()) return;
    constexpr std::int64_t kKibibyte = 1024;
    // CUDABlas.cpp, parseChosenWorkspaceSize(), PyTorch 2.11: larger on Hopper alone.
    const std::int64_t bytes = gpu_.compute_capability == 90 ? 32 * 1024 * kKibibyte : (4096 * 2 + 16 * 8) * kKibibyte;
    const MemoryScope scope(MemoryCategory::workspace);
    blas_workspace_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kMeta));
  }
  /// cuBLASLt products have a workspace of their own, which newer versions keep as well (CUDABlas.cpp, scaled_gemm()).
  void take_lt_workspace() const {
    if (lt_workspace_.defined()) return;
    const MemoryScope scope(MemoryCategory::workspace);
    const auto room = at::empty({std::int64_t{1} << 20}, at::TensorOptions(at::kByte).device(at::kMeta));
    if constexpr (kKeepsLtWorkspace) lt_workspace_ = room;
  }
  void fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums sums, bool add) const override {
    const bool apart = add || !can_take_fp8(out);
    const auto sum = apart ? at::empty(out.sizes(), out.options()) : at::Tensor();
    take_blas_workspace();
    auto work = detail::product_work(out, a.values, b.values.t(), false);
    work.speedup = sums == Fp8Sums::exact && gpu_.compute_capability == 90 ? kFp8ExactSpeedup : kFp8Speedup;
    work_.add(work);
    if (apart) {
      WorkItem pass;
      pass.bytes = detail::bytes_of({&out, &sum}) + (add ? detail::bytes_of({&out}) : 0);
      work_.add(pass);
    }
    take_lt_workspace();
  }
  at::ScalarType block_type(at::ScalarType dtype) const override { return gpu_block_type(traits(), dtype); }
  bool wide_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    const auto type = a.scalar_type();
    if (type == at::kFloat || a.dim() != 2 || block_type(type) != type) return false;
    product(out, a, b, add);
    return true;
  }
  void batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    product(out, a, b, add);
  }
  at::Tensor column_sums(const at::Tensor& x_ND) const override {
    auto out = at::empty({x_ND.size(1)}, x_ND.options().dtype(at::kFloat));
    if (const auto room = column_sum_room(gpu_, x_ND.size(0), x_ND.size(1)); room.bytes > 0) {
      const MemoryScope scope(MemoryCategory::workspace);
      const auto bytes = x_ND.options().dtype(at::kByte);
      const auto partial_sums = at::empty({room.bytes}, bytes);
      const auto semaphores = at::empty({room.semaphore_bytes}, bytes);
    }
    return out;
  }
  at::Tensor row_positions(std::int64_t n, const TokenPositions& place) const override {
    if (place.positions_N.defined()) return place.positions_N;
    const auto options = at::TensorOptions(at::kLong).device(at::kMeta);
    const auto range = at::empty({n}, options);  // ATen's own grows its meta tensor beside the allocator
    return at::empty({n}, options);
  }
  at::Tensor select_rows(const at::Tensor& from_PD, const at::Tensor& rows_N) const override {
    return at::empty({rows_N.size(0), from_PD.size(1)}, from_PD.options());
  }
  at::Tensor log_softmax(const at::Tensor& logits_NV) const override {
    // fp16 is read directly, bfloat16 is upcast first; the kernel needs contiguous rows.
    if (logits_NV.scalar_type() == at::kBFloat16)
      return log_softmax(at::empty(logits_NV.sizes(), logits_NV.options().dtype(at::kFloat)));
    auto out = at::empty(logits_NV.sizes(), logits_NV.options().dtype(at::kFloat));
    if (!logits_NV.is_contiguous()) const auto packed = at::empty(logits_NV.sizes(), logits_NV.options());
    return out;
  }
  at::Tensor plain_layer_norm(const at::Tensor& x_ND, const at::Tensor&, const at::Tensor&,
                              NormResult& stats) const override {
    auto out_ND = at::empty_like(x_ND);
    stats.mean_N = at::empty({x_ND.size(0)}, x_ND.options().dtype(at::kFloat));
    stats.rstd_N = at::empty_like(stats.mean_N);
    return out_ND;
  }
  std::array<at::Tensor, 3> plain_layer_norm_grads(const NormBackward& norm) const override {
    const auto dim = norm.x_ND.size(1);
    auto dx = at::empty_like(norm.x_ND);
    return {dx, at::empty({dim}, norm.x_ND.options()), at::empty({dim}, norm.x_ND.options())};
  }
  at::Tensor dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                          at::ScalarType dtype) const override {
    if (has_kernels()) return DeviceOps::dropout_mask(keys_N, columns, probability, dtype);
    const auto options = at::TensorOptions(at::kMeta);
    auto on_device = at::empty({keys_N.size(0), columns}, options.dtype(dtype));
    const MemoryScope scope(MemoryCategory::activations, true);
    const auto mask = at::empty(on_device.sizes(), options.dtype(at::kFloat));
    if (dtype != at::kFloat) const auto narrowed = at::empty_like(on_device);
    return on_device;
  }

 private:
  /// Products are counted where they are made.
  void count_between_products(const at::Tensor& qkv_NC, const AttentionShape& s, bool backward) const {
    const auto dtype = qkv_NC.scalar_type();
    if (!attends_in_blocks(qkv_NC, s) || block_type(dtype) != dtype) return;
    WorkItem work;
    work.bytes = bytes_between_products(s, static_cast<std::int64_t>(qkv_NC.element_size()), backward);
    work_.add(work);
  }
  /// Captures as the CUDA back end does: in a memory pool and on a stream of its own, for which cuBLAS has a second
  /// workspace.
  std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const override {
    using enum AllocatorMark::Kind;
    place_.tape().mark(empty_cache);
    place_.tape().mark(begin_private);
    const auto swap = [this] {
      std::swap(blas_workspace_, recorded_workspace_);
      std::swap(lt_workspace_, recorded_lt_workspace_);
    };
    swap();
    body();
    swap();
    place_.tape().mark(end_private);
    return std::make_unique<NothingToDo>();
  }
  GpuAttentionTraits traits() const {
    return {.compute_capability = gpu_.compute_capability, .has_cudnn = kHasCudnnAttention, .asked = asked_};
  }

  detail::MetaDevice place_;
  GpuSpec gpu_;
  std::optional<GpuAttention> asked_ = asked_gpu_attention();
  mutable at::Tensor blas_workspace_, recorded_workspace_;
  mutable at::Tensor lt_workspace_, recorded_lt_workspace_;
};

}  // namespace

std::unique_ptr<Ops> make_meta_cuda_ops(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work,
                                        const GpuSpec& gpu) {
  return std::make_unique<MetaCudaOps>(std::move(tape), std::move(work), gpu);
}

}  // namespace fsdp
