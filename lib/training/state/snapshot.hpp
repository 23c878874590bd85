#pragma once
// The part of a checkpoint that one rank writes: copies of its shards, so that training continues during the write.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// One tensor block to write; owns its copy, or knows where it stays readable.
struct SnapshotBlock {
  std::string key;
  StatePath path;
  Shape global_shape = {}, offsets = {}, sizes = {};
  at::Tensor data = {};
  std::optional<StoreHandle> stored = {};  ///< of a tensor, of which `sizes` rows are the block
  std::int64_t first_row = 0;              ///< of them, in that tensor
};

struct Snapshot {
  std::vector<SnapshotBlock> blocks;
  std::shared_ptr<const PinnedTensors> pinned;  ///< null: all blocks are copies
  std::vector<std::pair<std::pair<std::string, StatePath>, nlohmann::json>> values;
};

/// Visits the tensors of a parameter that a checkpoint holds: its master weight and the optimizer's states.
using StateVisit = std::function<void(const std::string& key, const StatePath& path, const OptimizerState& state)>;
/// \param optimizer  null: the master weight alone
void visit_states(Engine& engine, const Optimizer* optimizer, std::size_t param, const StateVisit& visit);

/// Adds this rank's rows of what visit_states() visits. With `snapshot.pinned` the rows of a store stay there.
/// \param ops  copies from a device; null: by ATen
void copy_states(Snapshot& snapshot, Engine& engine, const Optimizer* optimizer, std::size_t param, const Ops* ops);

/// This rank's rows of master weights and of the optimizer's states; on rank 0 the steps too. What is in the runtime's
/// store stays there, pinned.
Snapshot copy_shards(ModelRuntime& runtime, Optimizer& optimizer);

/// optim.param_groups, as torch's optimizers have them.
void add_optimizer_values(Snapshot& snapshot, ModelRuntime& runtime, const Optimizer& optimizer, double lr,
                          bool decay_all);

/// Python values below "run", leaf by leaf as PyTorch stores nested state: they outlive a conversion, run.json does
/// not.
void add_run_values(Snapshot& snapshot, const std::string& key, const StatePath& path, const nlohmann::json& value);

/// A data file that a rank has written.
struct WrittenShards {
  std::vector<DcpItem> items;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;
};

/// Writes the data file of `rank` into `directory`. The report holds a failure too: one rank's error must not keep the
/// others waiting. \return what read_report() reads, for another rank of the same build
std::string write_snapshot(const std::filesystem::path& directory, int rank, const Snapshot& snapshot);
/// \throws IoError with the message of the rank that failed
WrittenShards read_report(const std::string& report);

}  // namespace fsdp
