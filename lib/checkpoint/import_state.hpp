#pragma once
// Fills master weights and optimizer from a checkpoint without run.json, each rank reading only its rows.
#include <vector>

#include "lib/checkpoint/import_model.hpp"
#include "lib/optim/adamw.hpp"
#include "lib/runtime/model_runtime.hpp"

namespace fsdp {

/// Reads this rank's rows, and with `optimizer` those of its state and the number of steps. Collective: what the ranks
/// read together is compared with the checkpoint's checksums, and all fail together. The caller publishes the master
/// weights. \param optimizer  null: parameters alone; otherwise `state` says where its state lies \throws FormatError
/// naming file and tensor; a head that is not the token embedding is refused too
void load_external(ModelRuntime& runtime, const ExternalCheckpoint& checkpoint, AdamW* optimizer,
                   const ExternalOptimizer& state);

}  // namespace fsdp
