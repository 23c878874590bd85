#pragma once
// Temporary memory of matrix products on the host, for the memory prediction.
#include <ATen/core/Tensor.h>

namespace fsdp {

/// How a product is computed.
struct ProductKind {
  bool direct = false;  ///< by oneDNN directly; false: by ATen, which calls oneDNN for 16-bit types if supported
  bool add = false;     ///< adds to out
  int threads = 1;      ///< threads; oneDNN packs operands for each
};

/// Bytes of the blocks that oneDNN packs operands into during out (+)= a @ b, all meta tensors that stand for the
/// host's.
std::int64_t product_block_bytes(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                 const ProductKind& kind);

/// Allocates and frees the temporary memory of host_product().
void allocate_product_scratch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, int threads);

}  // namespace fsdp
