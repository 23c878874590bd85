#pragma once
// What a product of matrices of the host allocates beside its result, for runs that do not happen.
#include <ATen/core/Tensor.h>

namespace fsdp {

/// How a product is made.
struct ProductKind {
  bool direct = false;  ///< by oneDNN at once, else by ATen, which gives 16-bit types to oneDNN where it takes them
  bool add = false;     ///< to what is there
  int threads = 1;      ///< oneDNN packs operands for each
};

/// Bytes of the blocks that oneDNN packs operands into during out (+)= a @ b, all meta tensors that stand for the
/// host's.
std::int64_t product_block_bytes(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                 const ProductKind& kind);

/// Allocates what host_product() does beside its result, and lets it go.
void allocate_product_scratch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, int threads);

}  // namespace fsdp
