// oneDNN packs operands into buffers whose size depends on its choice of kernel and tiles, which differs between
// processors and shapes (bf16 and fp16: 10 KiB to 2 MiB per thread) and is not documented. Therefore the product is
// started in oneDNN on reserved, unbacked memory and stopped at the allocation of its buffers, whose size is the
// result.
#include "lib/compute/meta/gemm_scratch.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <sys/mman.h>

#include <map>
#include <optional>
#include <vector>

#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/ops/products/wide_product.hpp"
#include "lib/compute/tensor/host_allocator.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kKiB = 1024;

/// True for contiguous rows or columns, which oneDNN reads without a copy. ATen copies other layouts first; its own
/// matrix products accept any row stride.
bool is_plain(const at::Tensor& x) { return x.is_contiguous() || x.transpose(-2, -1).is_contiguous(); }

/// True if ATen calls oneDNN for these factors on this processor: 16-bit types, and on AArch64 float32 with a second
/// factor that is a transposed contiguous matrix, as a linear layer's weight is.
bool onednn_takes(const at::Tensor& a, const at::Tensor& b) {
  const auto asks = [](at::ScalarType type, bool across) {
    const auto x = at::ones({64, 64}, at::TensorOptions(type));
    auto out = at::empty({64, 64}, x.options());
    return first_host_request([&] { at::mm_out(out, x, across ? x.t() : x); }).has_value();
  };
  static const bool bf16 = asks(at::kBFloat16, false), fp16 = asks(at::kHalf, false), wide = asks(at::kFloat, true);
  switch (a.scalar_type()) {
    case at::kBFloat16:
      return bf16;
    case at::kHalf:
      return fp16;
    case at::kFloat:
      return wide && a.dim() == 2 && a.is_contiguous() && !b.is_contiguous() && b.t().is_contiguous();
    default:
      return false;
  }
}

/// Reserved address space for host tensors; pages are backed only when they are touched.
class ReservedMemory {
 public:
  explicit ReservedMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;
  ~ReservedMemory() {
    if (there()) ::munmap(data_, bytes_);
  }
  bool there() const { return data_ != MAP_FAILED; }
  /// \return a host tensor with the sizes and strides of a meta tensor
  at::Tensor tensor_like(const at::Tensor& like) {
    constexpr std::size_t kPage = 4096;
    auto* begin = static_cast<std::byte*>(data_) + used_;
    used_ += (extent_bytes(like) + kPage - 1) / kPage * kPage;
    return at::from_blob(begin, like.sizes(), like.strides(), like.options().device(at::kCPU));
  }
  static std::size_t extent_bytes(const at::Tensor& x) {
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
    return static_cast<std::size_t>(last + 1) * static_cast<std::size_t>(x.element_size());
  }

 private:
  std::size_t bytes_;
  std::size_t used_ = 0;
  void* data_;
};

/// Bytes that oneDNN requests for these layouts; empty if that cannot be measured.
std::optional<std::int64_t> asked_bytes(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                        const ProductKind& kind) {
  const bool through_aten = !kind.direct && a.dim() == 2;
  if (kind.threads != at::get_num_threads() || (!through_aten && onednn_product() == nullptr)) return {};
  ReservedMemory memory(ReservedMemory::extent_bytes(out) + ReservedMemory::extent_bytes(a) +
                        ReservedMemory::extent_bytes(b) + 3 * 4096);
  if (!memory.there()) return {};
  auto real_out = memory.tensor_like(out);
  const auto real_a = memory.tensor_like(a), real_b = memory.tensor_like(b);
  const auto bytes = first_host_request([&] {
    if (!through_aten) {
      onednn_product()(real_a, real_b, real_out, kind.add ? 1.0f : 0.0f, 1.0f);
    } else if (kind.add) {
      real_out.addmm_(real_a, real_b);
    } else {
      at::mm_out(real_out, real_a, real_b);
    }
  });
  return bytes.value_or(0);
}

/// asked_bytes(), cached by dtype, sizes, strides and kind.
std::optional<std::int64_t> known_bytes(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                        const ProductKind& kind) {
  thread_local std::map<std::vector<std::int64_t>, std::optional<std::int64_t>> answers;
  std::vector<std::int64_t> question{static_cast<std::int64_t>(a.scalar_type()), kind.direct ? 1 : 0, kind.add ? 1 : 0,
                                     kind.threads};
  for (const auto* x : {&out, &a, &b}) {
    question.insert(question.end(), x->sizes().begin(), x->sizes().end());
    question.insert(question.end(), x->strides().begin(), x->strides().end());
  }
  const auto [at, is_new] = answers.try_emplace(question);
  if (is_new) at->second = asked_bytes(out, a, b, kind);
  return at->second;
}

/// Measured buffers per thread on AVX-512, used if asked_bytes() is empty.
std::int64_t typical_bytes(const at::Tensor& a, const at::Tensor& b) {
  const bool a_across = !a.is_contiguous(), b_across = !b.is_contiguous();
  switch (a.scalar_type()) {
    case at::kFloat:
      return (a_across ? 460 : (b_across ? 65 : 1)) * kKiB;
    case at::kBFloat16:
      return (a_across ? 540 : (b_across ? 97 : 130)) * kKiB;
    default:
      return 740 * kKiB;
  }
}

void allocate_aten_scratch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const ProductKind& kind) {
  const bool copies = kind.direct || (a.dim() == 3 && onednn_takes(a, b));
  const auto plain = [&](const at::Tensor& x) {
    return copies && !is_plain(x) ? at::empty(x.sizes(), x.options()) : x;
  };
  const auto plain_a = plain(a), plain_b = plain(b);
  const auto blocks = at::empty({product_block_bytes(out, plain_a, plain_b, kind)}, a.options().dtype(at::kByte));
}

/// Buffers of the first panel, which is the largest.
void allocate_wide_scratch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, int threads) {
  if (out.numel() == 0 || a.numel() == 0) return;
  const WidePanel panel(out, a);
  const auto part = [&](const at::Tensor& x, std::int64_t rows, std::int64_t columns) {
    auto cut = x.narrow(-2, 0, rows).narrow(-1, 0, columns);
    return x.dim() == 3 ? cut.narrow(0, 0, panel.batch) : cut;
  };
  const auto sum = panel.sum(part(out, panel.rows, panel.columns));
  const auto first = panel.first(part(a, panel.rows, panel.inner));
  const auto second = panel.second(part(b, panel.inner, panel.columns));
  allocate_aten_scratch(sum, first, second, {goes_to_onednn(first, second), add, threads});
}

}  // namespace

std::int64_t product_block_bytes(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                 const ProductKind& kind) {
  constexpr std::int64_t kFewest = 16 * 16 * 16;  // ATen does not use oneDNN up to so many multiply-adds: Matmul.cpp
  if (out.numel() == 0 || a.numel() == 0) return 0;
  if (!kind.direct && (!onednn_takes(a, b) || a.numel() * b.size(-1) <= kFewest)) return 0;
  return known_bytes(out, a, b, kind).value_or(typical_bytes(a, b) * kind.threads);
}

void allocate_product_scratch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, int threads) {
  if (is_upcast(a.scalar_type())) return allocate_wide_scratch(out, a, b, add, threads);
  allocate_aten_scratch(out, a, b, {goes_to_onednn(a, b), add, threads});
}

}  // namespace fsdp
