#pragma once
// Folders in which every rank saved its pieces with torch.save: DTensor, ShardedTensor, or FSDP1's flat shards.
// Source: verl 0.9 verl/utils/checkpoint/fsdp_checkpoint_manager.py, SkyRL 0.4, accelerate 1.15 utils/fsdp_utils.py.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// True for a directory with model_world_size_W_rank_R.pt or pytorch_model_fsdp_N_rankR.bin.
bool is_per_rank_folder(const std::filesystem::path& directory);

/// "model.<name>", "optim.state.<name>.<key>", "optim.param_groups.<n>" and the values of rank 0's extra state.
/// \throws FormatError, IoError
std::unique_ptr<Source> open_per_rank(const std::filesystem::path& directory);

}  // namespace fsdp
