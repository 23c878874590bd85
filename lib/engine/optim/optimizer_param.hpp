#pragma once
// A parameter and its state tensors as optimizers use them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/engine/offload/tensor_store.hpp"
#include "lib/engine/sharding/shard_layout.hpp"

namespace fsdp {

/// The rows of a parameter on this rank.
struct OptimizerParam {
  /// float32 [padded_rows, ...], updated in place; the states are stored in the same place
  StoredTensor master_weight;
  bool decay = true;  ///< weight decay applies
  ParamLayout layout;
  ShardRange range{};
  bool embedding = false;  ///< an embedding table: the gradient is zero for rows that a step does not use
  bool in_block = false;   ///< belongs to a transformer block, not to the layers before or after the blocks
};

/// \return a parameter that is entirely on this rank
OptimizerParam whole_param(const at::Tensor& master_weight, bool decay = true);

/// A state tensor of a parameter, and the rows of it on this rank: those that match the parameter's rows, or all.
struct OptimizerState {
  std::string key;                  ///< name in PyTorch's class; "a.b" is entry b of its dictionary a
  std::vector<std::int64_t> shape;  ///< of the whole state
  StoredTensor values;              ///< this rank's rows (of dim 0), followed by padding
  std::int64_t first_row = 0, num_rows = 0;
  std::int64_t saved_elsewhere = 0;  ///< number of leading rows that another rank has and saves, too
  bool constant = false;             ///< a constant; loading checks that the read values are equal
};

}  // namespace fsdp
