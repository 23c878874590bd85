#pragma once
// Optimizer states that every rank saved for itself, torch.save(optimizer.state_dict()), beside a local state.
#include <filesystem>
#include <memory>
#include <vector>

#include "lib/files/transform/flat_pieces.hpp"
#include "lib/files/transform/flat_units.hpp"
#include "lib/files/transform/local_state.hpp"

namespace fsdp {

/// Opens the files, in the order of the ranks. \throws FormatError, IoError
std::vector<std::shared_ptr<const Source>> open_optim_files(const std::vector<std::filesystem::path>& files);

/// Adds "optim.state.<fqn>.*" and "optim.param_groups.<n>.*" to `result`, whose sources are the local state and then
/// the ranks' files. The ids in the files count flat parameters in the order of the modules or, when the optimizer was
/// given use_orig_params' views, the parameters; what is 1-D and fits is cut up, what is 0-dim belongs to all alike.
/// \throws FormatError naming file, id and what does not fit
void add_raw_optim(PieceSource& result, const FlatUnits& units, const ParameterShapes& shapes);

}  // namespace fsdp
