#pragma once
// Checkpoints in the layouts of trainers: model, optimizer and counters in several files, or under names of their own.
// "optim.state.<name>.<key>" are the optimizer's states, "optim.param_groups.<n>" its settings; numbers of an optimizer
// become names where this can be known. Values of numpy (random states) and datetime are left out, and a remark names
// them.
// Formats: accelerate 1.15 (save_state), transformers 5 (Trainer), lightning 2.6, mosaicml 0.32, torchtitan.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// True for a folder of accelerate or of Hugging Face's Trainer: a model with an optimizer or a scheduler beside it.
bool is_trainer_folder(const std::filesystem::path& directory);

/// The weights keep the names of their file; "model.<name>" with FSDP. \throws FormatError, IoError
std::unique_ptr<Source> open_trainer_folder(const std::filesystem::path& directory);

/// A file or a DCP directory of Lightning, Composer or torchtitan with its optimizer under the names above, and with
/// what lies beside it; any other source as it is. \throws FormatError, IoError
std::unique_ptr<Source> as_trainer_checkpoint(std::unique_ptr<Source> source);

/// The newest checkpoint in a trainer's folder of checkpoints: the one that latest-rank0.pt or last.ckpt is, else the
/// highest by name (step-N, checkpoint-N, epE-baB, epoch=E-step=S.ckpt) that is none of this program. Empty: there is
/// none.
std::filesystem::path newest_of_trainer(const std::filesystem::path& directory);

/// A warning of a folder there that has the name of a checkpoint newer than newest_of_trainer() and holds none; "" for
/// none.
std::string incomplete_in_trainer(const std::filesystem::path& directory);

}  // namespace fsdp
