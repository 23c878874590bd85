#pragma once
// Tensors that ranks hold in pieces, as a rank's torch.save writes them: DTensor and ShardedTensor.
// Source: torch 2.6 and 2.15 torch/distributed/tensor/_api.py, placement_types.py, device_mesh.py,
// torch/distributed/_shard/sharded_tensor/api.py.
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

/// The pieces of a tensor that one rank holds; `blocks` say where they lie in the whole tensor.
struct DistributedTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<TensorView> views;
  std::vector<Block> blocks;
};

/// Reads the integers of a small tensor of the file, such as the ranks of a mesh.
using ReadIntegers = std::function<std::vector<std::int64_t>(const TensorView&)>;

/// True for a DTensor or a ShardedTensor. Validates nothing.
bool is_distributed_tensor(const PickleValue& value);

/// \param rank  that wrote the file
/// \throws FormatError naming what is not supported (partial sums), or does not fit the piece
DistributedTensor distributed_tensor(const PickleNode& node, std::size_t rank, const ReadIntegers& read);

/// The pieces of a tensor as plain data describe them.
struct DescribedTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::map<std::size_t, Block> blocks;  ///< by rank
};

/// \param data  a dict of global_shape, dtype, mesh_spec (mesh_shape, mesh_data) and placements, as metadata.pkl of
/// torch-checkpointing 0.1 has
/// \throws FormatError naming what is missing, is not supported, or does not fit
DescribedTensor described_tensor(const PickleNode& data);

}  // namespace fsdp
