#include "lib/compute/cuda/cuda_ops.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/compute/cuda/cuda_graphs.hpp"
#include "lib/compute/cuda/device_kernels.hpp"
#include "lib/compute/cuda/staged_copies.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/compute/ops/attention/gpu_attention.hpp"
#include "lib/compute/ops/attention/packed_heads.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/compute/tensor/torch_compat.hpp"

namespace fsdp {
namespace {

using namespace detail;

class CudaTimeMark final : public TimeMark {
 public:
  explicit CudaTimeMark(cudaStream_t stream) { event_.record(stream); }
  double seconds_since(const TimeMark& earlier) const override {
    float milliseconds = 0;
    check_cuda(
        cudaEventElapsedTime(&milliseconds, static_cast<const CudaTimeMark&>(earlier).event_.get(), event_.get()),
        "cudaEventElapsedTime");
    return milliseconds / 1e3;
  }

 private:
  UniqueEvent event_{cudaEventDefault};
};

class CudaOps final : public DeviceOps {
 public:
  CudaOps(at::Device device, const GpuAttentionTraits& traits, std::int64_t total_bytes, const EventWait& wait)
      : DeviceOps(device, device_kernels(device.index())),
        traits_(traits),
        total_bytes_(total_bytes),
        wait_(wait),
        copies_(device.index(), wait) {
    if (has_kernels() && records_allocations()) recorder_ = make_cuda_recorder(device.index());
  }

  /// Null without kernels (plain operators copy masks and positions from the host, which cannot be captured), and with
  /// another allocator than PyTorch's own.
  const WorkRecorder* recorder() const override { return recorder_.get(); }

  /// Small pageable tensors are first copied to pinned memory, which PyTorch's allocator keeps until the device has
  /// read it: with pageable memory the driver may wait for queued work. Callers do not change pinned tensors meanwhile.
  /// Not possible during a capture, since a replay would read whatever the pinned memory holds then.
  at::Tensor to_device(const at::Tensor& x) const override {
    if (!is_on_host(x)) return x.to(device());
    if (is_capturing()) throw RuntimeFailure("memory of the host cannot be sent while a graph is captured");
    const bool copied = x.nbytes() > 0 && x.nbytes() <= kMostPinned && !x.is_pinned();
    return (copied ? pinned_copy(x) : x).to(device(), x.scalar_type(), /*non_blocking=*/true);
  }
  at::Tensor to_host(const at::Tensor& x) const override {
    if (is_on_host(x)) return x;
    const bool pinned = x.nbytes() <= kMostPinned;
    auto here = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(pinned));
    if (pinned) {
      here.copy_(x, /*non_blocking=*/true);
      wait_for_asked();
    } else {
      transfer(here, x.contiguous());
    }
    return here;
  }
  void transfer(const at::Tensor& to, const at::Tensor& from) const override {
    if (is_on_host(to) == is_on_host(from)) return DeviceOps::transfer(to, from);
    const bool plain = to.scalar_type() == from.scalar_type() && to.is_contiguous() && from.is_contiguous();
    if (!plain) {
      wait_for_asked();  // a copy between dtypes blocks without a time limit
      return DeviceOps::transfer(to, from);
    }
    if (is_on_host(to)) return copies_.to_host(bytes_in(to), bytes_of(from), from.nbytes());
    copies_.to_device(bytes_in(to), to.nbytes(), [&](std::byte* room, std::size_t first, std::size_t count) {
      std::memcpy(room, bytes_of(from) + first, count);
    });
  }
  std::unique_ptr<Transfer> start_transfer(const at::Tensor& to, const at::Tensor& from) const override {
    const bool plain = to.scalar_type() == from.scalar_type() && to.is_contiguous() && from.is_contiguous();
    if (!plain || is_on_host(to) == is_on_host(from)) return DeviceOps::start_transfer(to, from);
    return transfer_until(copies_.start(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes()), to, from);
  }
  std::shared_ptr<void> lock_pages(const at::Tensor& x) const override {
    return is_on_host(x) ? lock_pages_of(x) : nullptr;
  }
  std::unique_ptr<TimeMark> mark_time() const override {
    return std::make_unique<CudaTimeMark>(c10::cuda::getCurrentCUDAStream(device().index()).stream());
  }
  /// Plain operators' cross-entropy needs several copies of the logits.
  std::int64_t logits_bytes() const override { return has_kernels() ? logits_bytes_of_gpu(total_bytes_) : 0; }
  std::string fp8_gemm_description() const override { return "float8 by cuBLASLt"; }
  std::string fp8_problem() const override { return gpu_fp8_problem(traits_.compute_capability); }
  void fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums sums, bool add) const override {
    const bool apart = add || !can_take_fp8(out);
    auto sum = apart ? at::empty(out.sizes(), out.options()) : out;
    at::_scaled_mm_out(sum, a.values, b.values.t(), a.inverse, b.inverse, {}, {}, sum.scalar_type(),
                       sums == Fp8Sums::fast);
    if (add) {
      out.add_(sum);
    } else if (apart) {
      out.copy_(sum);
    }
  }

  at::Tensor rotary_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                       const at::Tensor& out_ND, const AttentionShape& s,
                                       std::unique_ptr<AttentionState> state, const Rotation& rotation) const override {
    const auto dtype = qkv_NC.scalar_type();
    if (s.packing == nullptr) return fused_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state), &rotation);
    if (s.packing->whole == nullptr && packs_by_flash(traits_, s, dtype))
      return packed_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state), &rotation);
    return Ops::rotary_attention_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state), rotation);
  }

 protected:
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                           std::unique_ptr<AttentionState>* state) const override {
    const auto kernel = choose_gpu_attention(traits_, s, qkv_NC.scalar_type());
    if (s.rows == 0 || kernel >= GpuAttention::blocks) return DeviceOps::row_attention(qkv_NC, s, state);
    auto saved = std::make_unique<AttentionState>();
    auto out_ND = merge_heads(forward(kernel, qkv_NC, s, state != nullptr, *saved), s);
    if (state != nullptr) *state = std::move(saved);
    return out_ND;
  }
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& s, std::unique_ptr<AttentionState> state) const override {
    return fused_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state), nullptr);
  }

  /// One variable-length flash kernel for all documents. Padding counts as documents of its own, with zero gradients.
  at::Tensor packed_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                              std::unique_ptr<AttentionState>* state) const override {
    if (!packs_by_flash(traits_, s, qkv_NC.scalar_type())) return Ops::packed_attention(qkv_NC, s, state);
    const auto& packing = *s.packing;
    const auto tokens = [&](Part which) { return tokens_of(part_of(qkv_NC, s, which)); };
    auto saved = std::make_unique<AttentionState>();
    auto [out, logsumexp, seed, offset, unused] = at::_flash_attention_forward(
        tokens(Part::q), tokens(Part::k), tokens(Part::v), packing.starts, packing.starts, packing.longest,
        packing.longest, 0.0, /*is_causal=*/true, false, given_scale(s), keys_before(s, packing.longest), 0);
    saved->log_sums = logsumexp;
    saved->random_seed = seed;
    saved->random_offset = offset;
    if (state != nullptr) *state = std::move(saved);
    return out.reshape({s.rows * s.query_length, s.heads * s.head_size});
  }
  at::Tensor packed_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                       const at::Tensor& out_ND, const AttentionShape& s,
                                       std::unique_ptr<AttentionState> state) const override {
    if (!packs_by_flash(traits_, s, qkv_NC.scalar_type()))
      return Ops::packed_attention_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state));
    return packed_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state), nullptr);
  }

  /// Master weights on the host are rounded on the host, into the buffer that is sent.
  void send_rounded(const at::Tensor& to, const at::Tensor& from) const override {
    const auto element = to.element_size();
    const auto flat = from.reshape({-1});
    copies_.to_device(bytes_in(to), to.nbytes(), [&](std::byte* room, std::size_t first, std::size_t count) {
      const auto elements = static_cast<std::int64_t>(count / element);
      at::from_blob(room, {elements}, at::TensorOptions(to.scalar_type()))
          .copy_(flat.narrow(0, static_cast<std::int64_t>(first / element), elements));
    });
  }
  /// Through pinned memory, which PyTorch's allocator keeps until the device has written it.
  std::function<std::vector<double>()> start_read(const at::Tensor& values) const override {
    const auto here = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
    here.copy_(values, /*non_blocking=*/true);
    const auto done = std::make_shared<UniqueEvent>();
    done->record(c10::cuda::getCurrentCUDAStream(device().index()).stream());
    return [this, here, done] {
      wait_(*done);
      const auto* first = here.const_data_ptr<double>();
      return std::vector<double>(first, first + here.numel());
    };
  }
  /// The product's last pass adds the bias (cuBLASLt) if `out` is contiguous; otherwise PyTorch copies the bias first.
  void biased_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                      const at::Tensor& bias) const override {
    at::addmm_out(out, bias, a, b);
  }
  /// 16-bit factors into float32 without intermediate rounding.
  void batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    const bool widens = out.scalar_type() != a.scalar_type();
    if (add) {
      widens ? at::baddbmm_out(out, out, a, b, at::kFloat) : at::baddbmm_out(out, out, a, b);
    } else {
      widens ? at::bmm_out(out, a, b, at::kFloat) : at::bmm_out(out, a, b);
    }
  }
  at::ScalarType block_type(at::ScalarType dtype) const override { return gpu_block_type(traits_, dtype); }
  bool wide_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    // Where block_type() differs, cuBLAS cannot multiply this dtype into float32.
    const auto type = a.scalar_type();
    if (type == at::kFloat || a.dim() != 2 || block_type(type) != type) return false;
    if (add) {
      at::addmm_out(out, out, a, b, at::kFloat);
    } else {
      at::mm_out(out, a, b, at::kFloat);
    }
    return true;
  }

 private:
  /// Largest request to PyTorch's allocator of pinned memory, which never frees memory.
  static constexpr std::size_t kMostPinned = std::size_t{16} << 20;

  static std::byte* bytes_in(const at::Tensor& x) { return static_cast<std::byte*>(x.mutable_data_ptr()); }
  void wait_for_asked() const {
    const UniqueEvent asked;
    asked.record(c10::cuda::getCurrentCUDAStream(device().index()).stream());
    wait_(asked);
  }
  /// False for PYTORCH_ALLOC_CONF=backend:cudaMallocAsync: captured allocations would be part of the graph, and its
  /// second launch would be refused.
  static bool records_allocations() { return c10::cuda::CUDACachingAllocator::get()->name() == "native"; }
  static bool is_capturing() {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }
  static const std::byte* bytes_of(const at::Tensor& x) { return static_cast<const std::byte*>(x.const_data_ptr()); }

  /// Number of earlier keys that a query attends to, as flash takes it; empty without a window. \param longest  row
  /// length
  static std::optional<std::int64_t> keys_before(const AttentionShape& s, std::int64_t longest) {
    return s.window > 0 && s.window < longest ? std::optional(s.window - 1) : std::nullopt;
  }

  /// \return [B, heads, L, head_size] as a view [N, heads, head_size]
  static at::Tensor tokens_of(const at::Tensor& x_BHLD) { return x_BHLD.transpose(1, 2).flatten(0, 1); }

  /// Gradients of q, k and v for pack_heads().
  std::array<at::Tensor, 3> documents_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                               const at::Tensor& out_ND, const AttentionShape& s,
                                               const AttentionState& state) const {
    const auto& packing = *s.packing;
    const auto& saved = state;
    const auto tokens = [&](Part which) { return tokens_of(part_of(qkv_NC, s, which)); };
    const auto by_heads = [&](const at::Tensor& x_ND) { return x_ND.view({-1, s.heads, s.head_size}); };
    auto [gq, gk, gv] = at::_flash_attention_backward(
        by_heads(grad_out_ND), tokens(Part::q), tokens(Part::k), tokens(Part::v), by_heads(out_ND), saved.log_sums,
        packing.starts, packing.starts, packing.longest, packing.longest, 0.0, /*is_causal=*/true, saved.random_seed,
        saved.random_offset, given_scale(s), keys_before(s, packing.longest), 0);
    const auto rows = [&](const at::Tensor& x) { return x.unflatten(0, {s.rows, s.query_length}).transpose(1, 2); };
    return {rows(gq), rows(gk), rows(gv)};
  }

  /// \param rotation  null without rotary embedding, here and below
  at::Tensor packed_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                             const AttentionShape& s, std::unique_ptr<AttentionState> state,
                             const Rotation* rotation) const {
    auto grads = documents_backward(grad_out_ND, qkv_NC, out_ND, s, *state);
    state.reset();
    return pack_heads(std::move(grads), s, rotation);
  }
  at::Tensor fused_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                            const AttentionShape& s, std::unique_ptr<AttentionState> state,
                            const Rotation* rotation) const {
    const auto kernel = choose_gpu_attention(traits_, s, qkv_NC.scalar_type());
    if (s.rows == 0 || kernel >= GpuAttention::blocks) {
      if (rotation == nullptr)
        return DeviceOps::row_attention_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state));
      return DeviceOps::rotary_attention_backward(grad_out_ND, qkv_NC, out_ND, s, std::move(state), *rotation);
    }
    auto grads = backward(kernel, grad_out_ND, qkv_NC, out_ND, s, *state);
    state.reset();
    return pack_heads(std::move(grads), s, rotation);
  }

  /// \return [B, H, L, head_size]. The kernels support grouped-query attention.
  static at::Tensor forward(GpuAttention kernel, const at::Tensor& qkv_NC, const AttentionShape& s, bool keep,
                            AttentionState& saved) {
    const auto q = part_of(qkv_NC, s, Part::q), k = part_of(qkv_NC, s, Part::k), v = part_of(qkv_NC, s, Part::v);
    if (kernel == GpuAttention::memory_efficient) {
      auto [out, logsumexp, seed, offset] =
          at::_scaled_dot_product_efficient_attention(q, k, v, {}, keep, 0.0, /*is_causal=*/true, given_scale(s));
      saved.log_sums = logsumexp;
      saved.random_seed = seed;
      saved.random_offset = offset;
      return out;
    }
    if (!s.is_plain()) {
      auto [out, logsumexp, seed, offset, unused] = at::_flash_attention_forward(
          q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, {}, s.query_length, s.query_length, 0.0,
          /*is_causal=*/true, false, given_scale(s), keys_before(s, s.query_length), 0);
      saved.log_sums = logsumexp;
      saved.random_seed = seed;
      saved.random_offset = offset;
      return out.transpose(1, 2);
    }
    auto all =
        kernel == GpuAttention::cudnn
            ? at::_scaled_dot_product_cudnn_attention(q, k, v, {}, keep, 0.0, /*is_causal=*/true, false, given_scale(s))
            : at::_scaled_dot_product_flash_attention(q, k, v, 0.0, /*is_causal=*/true, false, given_scale(s));
    saved.log_sums = std::get<1>(all);
    saved.first_queries = std::get<2>(all);
    saved.first_keys = std::get<3>(all);
    saved.most_queries = std::get<4>(all).expect_int();
    saved.most_keys = std::get<5>(all).expect_int();
    saved.random_seed = std::get<6>(all);
    saved.random_offset = std::get<7>(all);
    return std::get<0>(all);
  }

  static std::array<at::Tensor, 3> backward(GpuAttention kernel, const at::Tensor& grad_out_ND,
                                            const at::Tensor& qkv_NC, const at::Tensor& out_ND, const AttentionShape& s,
                                            const AttentionState& saved) {
    const auto q = part_of(qkv_NC, s, Part::q), k = part_of(qkv_NC, s, Part::k), v = part_of(qkv_NC, s, Part::v);
    const auto grad_out = heads_of(grad_out_ND, s), out = heads_of(out_ND, s);
    if (kernel == GpuAttention::memory_efficient) {
      auto [gq, gk, gv, gbias] = at::_scaled_dot_product_efficient_attention_backward(
          grad_out, q, k, v, {}, out, saved.log_sums, saved.random_seed, saved.random_offset, 0.0,
          {true, true, true, false}, /*is_causal=*/true, given_scale(s));
      return {gq, gk, gv};
    }
    if (!s.is_plain()) {
      const auto tokens = [](const at::Tensor& x) { return x.transpose(1, 2); };
      auto [gq, gk, gv] = at::_flash_attention_backward(tokens(grad_out), tokens(q), tokens(k), tokens(v), tokens(out),
                                                        saved.log_sums, {}, {}, s.query_length, s.query_length, 0.0,
                                                        /*is_causal=*/true, saved.random_seed, saved.random_offset,
                                                        given_scale(s), keys_before(s, s.query_length), 0);
      return {tokens(gq), tokens(gk), tokens(gv)};
    }
    const auto all =
        kernel == GpuAttention::cudnn
            ? at::_scaled_dot_product_cudnn_attention_backward(
                  grad_out, q, k, v, out, saved.log_sums, saved.random_seed, saved.random_offset, {},
                  saved.first_queries, saved.first_keys, saved.most_queries, saved.most_keys, 0.0, /*is_causal=*/true,
                  given_scale(s))
            : at::_scaled_dot_product_flash_attention_backward(
                  grad_out, q, k, v, out, saved.log_sums, saved.first_queries, saved.first_keys, saved.most_queries,
                  saved.most_keys, 0.0, /*is_causal=*/true, saved.random_seed, saved.random_offset, given_scale(s));
    return {std::get<0>(all), std::get<1>(all), std::get<2>(all)};
  }

  GpuAttentionTraits traits_;
  std::int64_t total_bytes_;  ///< memory of the device
  EventWait wait_;
  mutable StagedCopies copies_;
  std::unique_ptr<WorkRecorder> recorder_;  ///< null without kernels
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(int device, int compute_capability, std::int64_t total_bytes, EventWait wait) {
  constexpr long kCudnnWithAttention = 91500;  // sdp_utils.cpp, check_prefer_cudnn_attention
  const auto& hooks = at::detail::getCUDAHooks();
  // The loaded cuDNN, as PyTorch asks: an environment module may provide an older one than that of the build.
  const bool has_cudnn = hooks.compiledWithCuDNN() && loaded_cudnn(hooks) > kCudnnWithAttention;
  const GpuAttentionTraits traits{
      .compute_capability = compute_capability, .has_cudnn = has_cudnn, .asked = asked_gpu_attention()};
  return std::make_unique<CudaOps>(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)), traits, total_bytes,
                                   wait);
}

}  // namespace fsdp
