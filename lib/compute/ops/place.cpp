#include "lib/compute/ops/place.hpp"

#include <ATen/ops/from_blob.h>

#include "lib/compute/tensor/host_allocator.hpp"

namespace fsdp {

at::Device Place::host() const { return at::kCPU; }
bool Place::is_on_host(const at::Tensor& x) const { return x.device().is_cpu(); }
at::Tensor Place::to_device(const at::Tensor& x) const { return x.to(device()); }
at::Tensor Place::to_host(const at::Tensor& x) const { return x.to(host()); }
void Place::transfer(const at::Tensor& to, const at::Tensor& from) const { to.copy_(from); }
std::unique_ptr<Transfer> Place::start_transfer(const at::Tensor& to, const at::Tensor& from) const {
  to.copy_(from);
  return nullptr;
}
std::shared_ptr<void> Place::lock_pages(const at::Tensor&) const { return nullptr; }
at::Tensor Place::tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::from_blob(data, sizes, at::TensorOptions(dtype));
}
void Place::count_window(std::int64_t bytes) const { count_external_host_memory(bytes); }
void Place::repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const {
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace fsdp
