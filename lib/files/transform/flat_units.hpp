#pragma once
// Which parameters lie in which flat parameter of a local state, and where.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/files/transform/flat_layout.hpp"
#include "lib/files/transform/local_state.hpp"

namespace fsdp {

/// One FSDP unit of a local state.
struct FlatUnit {
  std::size_t tensor = 0;               ///< the flat parameter's number in the source
  std::string module;                   ///< the key without "_flat_param": "", "model." or "model.transformer.h.0."
  std::vector<std::size_t> parameters;  ///< numbers in the shapes, in the order of the flat parameter
  FlatLayout layout;                    ///< of `parameters`
};

struct FlatUnits {
  std::string prefix;           ///< the user's nesting, in front of every parameter's name: "" or "model."
  std::vector<FlatUnit> units;  ///< in the order of the unwrapped model's modules, a module before those inside it
  std::vector<std::size_t> separate;  ///< parameters that FSDP left alone: the source has them under their own names
  bool has_slices = false;  ///< use_orig_params: the source also has one rank's slices under the parameters' names
};

/// True for a key `..._flat_param` (PyTorch 2) or `...flat_param` (1.13) of a 1-D tensor.
bool is_flat_key(const SourceTensor& tensor);

/// Finds the nesting, the units and the layouts that fit the flat parameters' sizes exactly; reads padding elements
/// only. \throws FormatError explaining unit by unit what does not add up; UsageError when a unit has no shapes at all
FlatUnits find_flat_units(const Source& source, const ParameterShapes& shapes);

}  // namespace fsdp
