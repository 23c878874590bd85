#pragma once
// The part of a checkpoint that one rank writes: copies of its shards, so that training continues during the write.
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/files/formats/dcp.hpp"

namespace fsdp {

/// One tensor block to write; owns its copy, or knows where it stays readable.
struct SnapshotBlock {
  std::string key;
  StatePath path;
  Shape global_shape, offsets, sizes;
  at::Tensor data;
  std::optional<StorePlace> stored = {};  ///< of a tensor, of which `sizes` rows are the block
  std::int64_t first_row = 0;             ///< of them, in that tensor
};

struct Snapshot {
  std::vector<SnapshotBlock> blocks;
  std::shared_ptr<const PinnedTensors> pinned;  ///< null: all blocks are copies
  std::vector<std::pair<std::pair<std::string, StatePath>, nlohmann::json>> values;
};

/// This rank's rows of master weights and of the optimizer's states; on rank 0 the steps too. What is in the runtime's
/// store stays there, pinned.
Snapshot copy_shards(ModelRuntime& runtime, Optimizer& optimizer);

/// optim.param_groups, as torch's optimizers have them.
void add_optimizer_values(Snapshot& snapshot, ModelRuntime& runtime, const Optimizer& optimizer, double lr,
                          bool decay_all);

/// Python values below "run", leaf by leaf as PyTorch stores nested state: they outlive a conversion, run.json does
/// not.
void add_run_values(Snapshot& snapshot, const std::string& key, const StatePath& path, const nlohmann::json& value);

/// Into `directory`. What went wrong is in the report: one rank's error must not keep the others waiting.
/// \return CBOR: {"items", "size_bytes", "crc32"} or {"error"}
std::string write_snapshot(const std::filesystem::path& directory, int rank, const Snapshot& snapshot);

}  // namespace fsdp
