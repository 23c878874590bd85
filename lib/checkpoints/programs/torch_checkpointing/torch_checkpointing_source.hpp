#pragma once
// A folder of torch-checkpointing: one file per item and rank, ITEM_RANK.pt, .safetensors or .json, and metadata.pkl
// where an item has a resharder.
// Format: torch-checkpointing 0.1, torch_checkpointing/{checkpoint_layout,metadata_manager,default_resharder}.py.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// True for a directory with metadata.pkl and files of items.
bool has_torch_checkpointing_metadata(const std::filesystem::path& directory);

/// True for a directory with an item ITEM_0.pt that holds tensors in pieces. Opens files of items.
bool holds_torch_checkpointing_items(const std::filesystem::path& directory);

/// \throws FormatError for a safetensors file of one rank, beside a metadata.pkl: it holds pieces, and does not say so
void refuse_pieces_alone(const std::filesystem::path& file);

/// Names are ITEM.<name in the item>. Values are those of rank 0.
/// \throws FormatError naming ranks whose files are missing, and pieces of which nothing says where they lie; IoError
std::unique_ptr<Source> open_torch_checkpointing(const std::filesystem::path& directory);

}  // namespace fsdp
