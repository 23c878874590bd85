#pragma once
// A parameter and its state tensors, as optimizers see them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/engine/fsdp/shard_layout.hpp"
#include "lib/engine/offload/tensor_store.hpp"

namespace fsdp {

/// A parameter's rows on this rank.
struct OptimizerParam {
  StoredTensor master_weight;  ///< float32 [padded_rows, ...], updated in place; its states are where it is
  bool decay = true;           ///< weight decay applies
  ParamLayout layout;
  ShardRange range{};
  bool embedding = false;  ///< a table of which a step uses some rows: the gradient of the others is zero
  bool in_block = false;   ///< of a transformer block, not of what is before and behind them
};

/// A parameter that is whole on this rank.
OptimizerParam whole_param(const at::Tensor& master_weight, bool decay = true);

/// One state tensor of a parameter, and the rows of it that this rank has: those of its rows of the parameter, or all.
struct OptimizerState {
  std::string key;                  ///< as PyTorch's class calls it; "a.b" is b in its dictionary a
  std::vector<std::int64_t> shape;  ///< of the whole
  StoredTensor values;              ///< this rank's rows (of dim 0) first, then padding
  std::int64_t first_row = 0, num_rows = 0;
  std::int64_t saved_elsewhere = 0;  ///< of these rows, the first: another rank has them too
  bool constant = false;             ///< the same for every state: what is read must be equal to it
};

}  // namespace fsdp
