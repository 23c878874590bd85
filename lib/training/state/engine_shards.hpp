#pragma once
// Checkpoints of an engine whose model is no decoder of ours: what a program on the library (docs/library.md) saves and
// loads. Parameters are "model.NAME", states "optim.state.NAME.KEY", as in a run's checkpoints (save.hpp).
#include <filesystem>

#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/sharding/mesh.hpp"

namespace fsdp {

/// Writes `directory` as PyTorch's distributed checkpoint, each rank its own rows, in 32 bits or what they are kept in.
/// It appears whole or not at all, and must not be there yet. Collective over `world`, the engine's ranks; when one
/// rank fails all do. Nothing is kept after the call. \param optimizer  null: the parameters alone \throws RequestError
/// when it is there; IoError; FormatError where a value is not finite
void save_shards(ProcessGroup& world, const Mesh& mesh, Engine& engine, const Optimizer* optimizer,
                 const std::filesystem::path& directory);

/// Reads this rank's rows, whatever number of ranks wrote them, and publishes them to all (Engine::sync_parameters).
/// Other tensors of the checkpoint are passed by. Collective.
/// \param optimizer  null: the parameters alone
/// \throws FormatError naming a parameter or state that is missing or has another shape; IoError
void load_shards(ProcessGroup& world, Engine& engine, Optimizer* optimizer, const std::filesystem::path& path);

}  // namespace fsdp
