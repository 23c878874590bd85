#pragma once
// TensorCollectives on NCCL. Nothing here makes the host wait for the device.
#include <memory>

#include "lib/engine/collectives/nccl/nccl_comm.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"

namespace fsdp::detail {

/// Tensors must lie on the communicator's device. wait() of a Work makes the then current CUDA stream wait, so it may
/// be called long before the transfer is done. A Work that is never waited for is safe to drop: see its destructor.
///
/// Gradients are summed by NCCL in the dtype of TensorReduce::full; unlike the host's collectives the order of the sum
/// depends on the number of ranks and NCCL's choice of algorithm.
std::unique_ptr<TensorCollectives> make_nccl_collectives(std::shared_ptr<NcclComm> comm,
                                                         std::shared_ptr<const Ops> ops);

}  // namespace fsdp::detail
