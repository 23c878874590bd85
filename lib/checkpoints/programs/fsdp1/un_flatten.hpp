#pragma once
// Un-flattens a local state of FSDP1: the 1-D flat parameter of each FSDP unit becomes the original parameters again.
// Source: PyTorch torch/distributed/fsdp/_flat_param.py.
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/shard_record.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// The parameters of the unwrapped model in the order of named_parameters(), which a local state does not contain.
struct ParameterShapes {
  struct Entry {
    std::string name;
    Shape shape;
  };
  std::vector<Entry> parameters;
  /// (tied name, the parameter whose storage it shares); the second is empty when it is unknown.
  std::vector<std::pair<std::string, std::string>> ties;
  std::string origin;  ///< file that the shapes came from, for messages
};

/// Reads {"parameters": [{"fqn": name, "shape": [...]}, ...], "all_names_including_tied": [name, ...]}, where the
/// second is optional; see docs/fsdp-ckpt-convert.md. A head without a shape (lm_head.weight) in that list is tied to
/// the token embedding.
/// \throws FormatError, IoError, like the functions below
ParameterShapes read_parameter_shapes(const std::filesystem::path& file);
/// Derives the shapes from a model configuration (minGPT, Llama, Hugging Face's GPT-2).
/// \param directory_or_file  the file, or a directory with config.json or run.json
ParameterShapes parameter_shapes_of_config(const std::filesystem::path& directory_or_file);
/// Derives the shapes from JSON, such as that of Source::model_config(). \param origin  for messages
ParameterShapes parameter_shapes_of_json(const nlohmann::json& config, const std::string& origin);
/// Takes the shapes from a full checkpoint of the same model. Only a .pt keeps the order of named_parameters(); for
/// other formats the order is known for minGPT, GPT-2 and Llama. Tensors of equal bytes are ties, except for those that
/// begin with 64 KiB of one value (fresh norms and biases).
ParameterShapes parameter_shapes_of_reference(const std::filesystem::path& checkpoint);

struct UnFlattenOptions {
  ParameterShapes shapes;
  std::vector<std::pair<std::string, std::string>> ties;  ///< ties from --tie A=B, in addition to those of the shapes
  /// Files of torch.save(optimizer.state_dict()), in the order of the ranks; empty: no optimizer state.
  std::vector<std::filesystem::path> optim_files;
};

/// Returns the original parameters (tied ones under both names), buffers and values, and the optimizer state as
/// "optim.state.<fqn>.*" and "optim.param_groups.<n>.*". Checks that sizes fit exactly, and that alignment padding
/// holds FSDP's 42.0. The local state of a single rank is a full state dict already: it stays as it is, and so do
/// parameters that FSDP ignored.
/// \throws FormatError explaining for each unit what does not fit; RequestError when shapes are missing for a unit
std::unique_ptr<Source> un_flatten(std::shared_ptr<const Source> source, const UnFlattenOptions& options);

}  // namespace fsdp
