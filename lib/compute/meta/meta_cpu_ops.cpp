#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include "lib/compute/meta/gemm_scratch.hpp"
#include "lib/compute/meta/meta_attention.hpp"
#include "lib/compute/meta/meta_ops.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

class MetaCpuOps final : public CpuOps {
 public:
  MetaCpuOps(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work, int threads)
      : CpuOps(detail::WorkCounter(std::move(work), 4)), place_(std::move(tape)), threads_(threads) {}

  at::Device device() const override { return at::kMeta; }
  at::Device host() const override { return at::kMeta; }
  bool is_on_host(const at::Tensor&) const override { return true; }
  at::Tensor to_device(const at::Tensor& x) const override { return x; }
  at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const override {
    return place_.tensor_at(data, sizes, dtype);
  }
  void count_shared_memory(std::int64_t bytes) const override { place_.tape().record_external(bytes); }
  void repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const override {
    work_.repeat(n, detail::MetaDevice::kRepeats, body);
  }
  void launch(std::int64_t, std::int64_t, const std::function<void(std::int64_t, std::int64_t)>&) const override {}

 protected:
  void plain_adamw(const AdamWUpdate& update) const override { place_.adamw(update); }
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    work_.add(detail::product_work(out, a, b, add));
    const MemoryScope scope(MemoryCategory::workspace);
    allocate_product_scratch(out, a, b, add, threads_);
  }
  void add_converted(at::Tensor& to, const at::Tensor& from) const override {
    if (to.scalar_type() == at::kFloat && from.element_size() == 2) return;
    // ATen's operators compute in the common dtype: one copy of the input and one of the output.
    const auto wide = to.options().dtype(at::kFloat);
    const auto read = at::empty_like(to, wide), written = at::empty_like(to, wide);
  }
  at::Tensor flash(const at::Tensor& qkv_NC, const AttentionShape& s, at::Tensor& logsumexp) const override {
    work_.add(detail::attention_work(qkv_NC, s, false));
    return allocate_cpu_flash(qkv_NC, s, threads_, logsumexp);
  }
  at::Tensor flash_backward(const at::Tensor&, const at::Tensor& qkv_NC, const at::Tensor&, const AttentionShape& s,
                            const at::Tensor&) const override {
    work_.add(detail::attention_work(qkv_NC, s, true));
    return allocate_cpu_flash_backward(qkv_NC, s, threads_);
  }

 private:
  detail::MetaDevice place_;
  int threads_;
};

}  // namespace

at::Tensor detail::MetaDevice::tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::from_blob(
      data, sizes, [](void*) {}, at::TensorOptions(dtype).device(at::kMeta), at::Device(at::kMeta));
}

void detail::MetaDevice::adamw(const AdamWUpdate& update) {
  const auto options = update.params.front().options();
  const auto step = at::empty({}, options);
  if (update.grad_divisor != 1.0) const auto divisor = at::empty({}, options);
}

std::unique_ptr<Ops> make_meta_cpu_ops(std::shared_ptr<MemoryTape> tape, std::shared_ptr<WorkLog> work, int threads) {
  return std::make_unique<MetaCpuOps>(std::move(tape), std::move(work), threads);
}

}  // namespace fsdp
