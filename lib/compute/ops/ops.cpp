#include "lib/compute/ops/ops.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {

Ops::Ops(const kernels::Table* cpu, std::shared_ptr<const fused::Kernels> fused, detail::WorkCounter work)
    : cpu_(cpu), fused_(std::move(fused)), work_(std::move(work)) {}

Ops::~Ops() = default;

const fused::Kernels* Ops::fused_for(std::initializer_list<const at::Tensor*> tensors) const {
  if (fused_ == nullptr) return nullptr;
  const auto& first = **tensors.begin();
  const bool fits =
      detail::has_kernel_type(first) && first.numel() > 0 &&
      std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* x) {
        return !x->defined() || (x->scalar_type() == first.scalar_type() && x->is_contiguous() && !is_on_host(*x));
      });
  return fits ? fused_.get() : nullptr;
}

void Ops::launch(std::int64_t n, std::int64_t grain,
                 const std::function<void(std::int64_t, std::int64_t)>& body) const {
  parallel_for(n, grain, body);
}

std::function<std::vector<double>()> Ops::start_read(const at::Tensor& values) const {
  return [read_values = read(values)] { return read_values; };
}

std::vector<double> Ops::read(const at::Tensor& values) const {
  const auto here = to_host(values);
  const auto* data = here.const_data_ptr<double>();
  return {data, data + here.numel()};
}

at::Device Ops::host() const { return at::kCPU; }
bool Ops::is_on_host(const at::Tensor& x) const { return x.device().is_cpu(); }
at::Tensor Ops::to_device(const at::Tensor& x) const { return x.to(device()); }
at::Tensor Ops::to_host(const at::Tensor& x) const { return x.to(host()); }
void Ops::transfer(const at::Tensor& to, const at::Tensor& from) const { to.copy_(from); }
std::unique_ptr<Transfer> Ops::start_transfer(const at::Tensor& to, const at::Tensor& from) const {
  to.copy_(from);
  return nullptr;
}
std::shared_ptr<void> Ops::lock_pages(const at::Tensor&) const { return nullptr; }
at::Tensor Ops::tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::from_blob(data, sizes, at::TensorOptions(dtype));
}
void Ops::count_shared_memory(std::int64_t bytes) const { count_external_host_memory(bytes); }
void Ops::repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const {
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace fsdp
