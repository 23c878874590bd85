#pragma once
// TensorCollectives on NCCL. No function here makes the host wait for the device.
#include <memory>

#include "lib/engine/collectives/nccl/nccl_comm.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"

namespace fsdp::detail {

/// Tensors must be on the communicator's device. Work::wait() makes the current CUDA stream wait, not the host, so it
/// may be called long before the transfer has ended. A Work may be destroyed without wait().
///
/// NCCL sums gradients in the dtype of TensorReduce::full. Unlike in the host's collectives, the order of additions
/// depends on the number of ranks and on NCCL's choice of algorithm.
std::unique_ptr<TensorCollectives> make_nccl_collectives(std::shared_ptr<NcclComm> comm,
                                                         std::shared_ptr<const Ops> ops);

}  // namespace fsdp::detail
