#pragma once
// Collectives on tensors along one mesh axis: NCCL for CUDA tensors, the host's process group for the rest.
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "lib/compute/ops/ops.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// One tensor of a grouped all-gather: every rank's `shard`, one after the other by rank, becomes `full`.
/// `shard` may be the part of `full` that is this rank's.
struct TensorGather {
  at::Tensor shard;  ///< contiguous
  at::Tensor full;   ///< contiguous, size() times shard's elements
};

/// One tensor of a grouped reduce-scatter.
struct TensorReduce {
  at::Tensor full;          ///< contiguous, size() times shard's elements, reduce dtype
  at::Tensor shard;         ///< contiguous, float32; also the dtype of `full` where it is replaced
  bool accumulate = false;  ///< add to shard instead of replacing it
};

/// One tensor of a grouped all-to-all: part r of `in` goes to rank r, `out` collects the parts meant for this rank.
struct TensorExchange {
  at::Tensor in;   ///< contiguous; its elements divide by size()
  at::Tensor out;  ///< contiguous, as many elements, of the same type
};

/// Tensors named in a call must stay alive and untouched until wait() of its Work.
class TensorCollectives {
 public:
  virtual ~TensorCollectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Work> all_gather(std::span<const TensorGather> tensors) = 0;
  virtual std::unique_ptr<Work> reduce_scatter(std::span<const TensorReduce> tensors) = 0;
  virtual std::unique_ptr<Work> all_to_all(std::span<const TensorExchange> tensors) = 0;
  /// Sums tensors in place, all of one type: float32, float64 or bfloat16; every rank gets the same bits. bfloat16
  /// travels as such; the host sums it in float32 and rounds once, NCCL as its version does.
  virtual std::unique_ptr<Work> all_reduce(std::span<const at::Tensor> tensors) = 0;
};

/// Over a host process group. Tensors of the host travel as they are; others are staged through its memory.
/// Gradients are exchanged and summed in float32 in rank order, so the bits do not depend on the transport, and bf16
/// needs no MPI operation of its own (MPI has none).
/// \param ops  must outlive the result
std::unique_ptr<TensorCollectives> make_host_collectives(ProcessGroup& group, const Ops& ops = host_ops());

/// Collectives of a group of one rank: copies on the tensors' device, on the current stream, without a communicator.
std::unique_ptr<TensorCollectives> make_lone_collectives();

}  // namespace fsdp
