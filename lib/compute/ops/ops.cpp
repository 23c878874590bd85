#include "lib/compute/ops/ops.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {

void Ops::launch(std::int64_t n, std::int64_t grain,
                 const std::function<void(std::int64_t, std::int64_t)>& body) const {
  parallel_for(n, grain, body);
}

std::string Ops::product_way(at::ScalarType dtype) const {
  const bool exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
  if (dtype == at::kFloat && !exact) return "float32 in TF32";
  return dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bf16 natively" : "fp16 natively";
}

void Ops::cast_shards(std::span<const CastShard> rows) const {
  for (const auto& [to, from] : rows) to.copy_(from);
}

void Ops::upcast_sums(std::span<const UpcastSum> rows) const {
  for (const auto& [to, from, add] : rows) add ? to.add_(from) : to.copy_(from);
}

at::Tensor Ops::exact_gelu(const at::Tensor& pre_NF) const { return at::gelu(pre_NF); }

at::Tensor Ops::exact_gelu_backward(const at::Tensor& grad_NF, const at::Tensor& pre_NF) const {
  return at::gelu_backward(grad_NF, pre_NF);
}

at::Tensor Ops::zero_sums(const at::Tensor& x_ND) {
  return at::zeros({x_ND.size(1)}, x_ND.options().dtype(at::kFloat));
}

at::Tensor Ops::rotary_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                          const at::Tensor& out_ND, const AttentionShape& shape,
                                          std::unique_ptr<AttentionState> state, const Rotation& rotation) const {
  auto grad_qkv_NC = attention_backward(grad_out_ND, qkv_NC, out_ND, shape, std::move(state));
  // Keys follow queries in a row, so one pass rotates the heads of both.
  rope(grad_qkv_NC, shape.heads + shape.key_heads(), shape.head_size, rotation.table, rotation.place, true);
  return grad_qkv_NC;
}

at::Tensor Ops::dropout_keys(const DropoutSeeds& place, std::int64_t rows_per_sample, std::uint64_t step) const {
  const MemoryScope scope(MemoryCategory::activations, true);
  const auto samples = place.sample_keys_B.size(0);
  auto keys = at::empty({samples * rows_per_sample}, at::TensorOptions(at::kLong).device(host()));
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    auto* out = keys.data_ptr<std::int64_t>();
    const auto* sample = place.sample_keys_B.const_data_ptr<std::int64_t>();
    for (std::int64_t b = 0; b < samples; ++b) {
      const auto first = static_cast<std::uint64_t>(sample[b]) ^ place.place;
      for (std::int64_t t = 0; t < rows_per_sample; ++t) {
        *out++ = static_cast<std::int64_t>(first + static_cast<std::uint64_t>(t) * step);
      }
    }
  });
  return keys;
}

at::Tensor Ops::device_sum_squares(std::span<const GradPart>) const { TORCH_CHECK(false, "the host decides steps"); }
at::Tensor Ops::decide(const StepToDecide&) const { TORCH_CHECK(false, "the host decides steps"); }
std::function<StepOutcome()> Ops::outcome_of(const at::Tensor&) const { TORCH_CHECK(false, "the host decides steps"); }

RopeTable Ops::rope_table(std::span<const float> frequencies, std::int64_t positions) const {
  // The table outlives the layer that requests it first, so it is not an activation.
  const MemoryScope scope(MemoryCategory::workspace);
  const auto half = static_cast<std::int64_t>(frequencies.size());
  const auto options = at::TensorOptions(at::kFloat).device(host());
  RopeTable table{at::empty({positions, half}, options), at::empty({positions, half}, options)};
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    auto* cosine = table.cos_PH.data_ptr<float>();
    auto* sine = table.sin_PH.data_ptr<float>();
    for (std::int64_t p = 0; p < positions; ++p) {
      for (const float frequency : frequencies) {
        // The angle is rounded to float32 as in transformers, an error of 5e-4 at position 16,384.
        const float angle = static_cast<float>(p) * frequency;
        *cosine++ = static_cast<float>(std::cos(static_cast<double>(angle)));
        *sine++ = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
  return {to_device(table.cos_PH), to_device(table.sin_PH)};
}

std::function<std::vector<double>()> Ops::start_read(const at::Tensor& values) const {
  return [read_values = read(values)] { return read_values; };
}

std::vector<double> Ops::read(const at::Tensor& values) const {
  const auto here = to_host(values);
  const auto* data = here.const_data_ptr<double>();
  return {data, data + here.numel()};
}

void Ops::fetch(StepSums& sums) const {
  if (!sums.pending.defined()) return;
  sums.add(read(sums.pending));
  sums.pending.reset();
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
