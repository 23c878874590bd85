#pragma once
// Finds the parameters of a model among the tensors of a source. The names and shapes are those of parameter_table().
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// Returns `name` without the components that wrapper modules put into it (module, _fsdp_wrapped_module, _orig_mod,
/// ...).
std::string without_wrappers(const std::string& name);

/// Presents the tensors of a model under its own names: without the components of wrappers, without the prefix of a
/// module around the model ("net."), and with the prefix "model." that a bare model lacks. Other names stay.
/// \throws FormatError naming the prefixes of several models
std::shared_ptr<const Source> with_model_names(std::shared_ptr<const Source> source, const ModelConfig& config);

/// \throws FormatError naming a tensor of peft's modules inside a model, whose weights are not yet those of the model
void refuse_adapters_inside(const Source& source);

/// True for a buffer that some writers store beside the parameters: it follows from config.json.
bool is_known_buffer(const std::string& name);

struct ModelTensors {
  std::vector<std::size_t> numbers;           ///< of tensors, by parameter; of a matrix in 4 bits its codes
  std::set<std::size_t> missing;              ///< parameters: a new head (ModelConfig::score_is_new), whose number is 0
  std::map<std::size_t, std::size_t> copies;  ///< by parameter, the tensor of its tied name, if it is there, too
  std::map<std::size_t, StoredNf4> stored;    ///< by parameter: matrices in 4 bits
};

/// \param path  for messages \param quantize  how config.json says that matrices are stored
/// \throws FormatError naming a tensor without a place in the model, a parameter that is missing, or one of another
/// shape
ModelTensors find_model_tensors(const Source& source, const std::filesystem::path& path, const ModelConfig& config,
                                const QuantizeConfig& quantize);

/// \throws FormatError unless the tensor has the shape of a parameter
void check_shape(const SourceTensor& tensor, const Shape& shape, const std::filesystem::path& path);

}  // namespace fsdp
