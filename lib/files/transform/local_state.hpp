#pragma once
// Un-flattens FSDP1's local state: one 1-D flat parameter per FSDP unit becomes the original parameters again.
// Source: PyTorch torch/distributed/fsdp/_flat_param.py.
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/files/formats/shard_record.hpp"
#include "lib/files/read/source.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// What a local state itself does not say: the parameters of the unwrapped model in the order of named_parameters().
struct ParameterShapes {
  struct Entry {
    std::string name;
    Shape shape;
  };
  std::vector<Entry> parameters;
  /// (name without storage of its own, the one it shares); the second is empty where nothing says which one it is.
  std::vector<std::pair<std::string, std::string>> ties;
  std::string origin;  ///< for messages: the file it came from
};

/// {"parameters": [{"fqn": name, "shape": [...]}, ...], "all_names_including_tied": [name, ...]}, the second optional:
/// see docs/fsdp-ckpt-convert.md. A head that it lists without a shape (lm_head.weight) is tied to the token embedding.
/// \throws FormatError, IoError, like the others
ParameterShapes read_parameter_shapes(const std::filesystem::path& file);
/// From a model configuration (minGPT, Llama, Hugging Face's GPT-2): a directory with config.json or run.json, or the
/// file.
ParameterShapes parameter_shapes_of_config(const std::filesystem::path& directory_or_file);
/// The same for JSON that is at hand, such as Source::model_config(). \param origin  for messages
ParameterShapes parameter_shapes_of_json(const nlohmann::json& config, const std::string& origin);
/// From a full checkpoint of the same model: names, shapes and order. Only a .pt keeps the order of named_parameters();
/// of other formats it is known for minGPT, GPT-2 and Llama. Tensors of equal bytes are ties, but for those
/// that begin with 64 KiB of one value (fresh norms and biases).
ParameterShapes parameter_shapes_of_reference(const std::filesystem::path& checkpoint);

struct UnFlattenOptions {
  ParameterShapes shapes;
  std::vector<std::pair<std::string, std::string>> ties;  ///< --tie A=B, in addition
  /// torch.save(optimizer.state_dict()) of every rank, in the order of the ranks; none: no optimizer state.
  std::vector<std::filesystem::path> optim_files;
};

/// The original parameters (both names of tied ones), buffers and values; the optimizer's state as
/// "optim.state.<fqn>.*" and "optim.param_groups.<n>.*". Sizes, and alignment padding where the writer put any, are
/// checked to fit exactly: padding elements must all hold FSDP's 42.0. A local state of one rank is a full state dict
/// already: it stays as it is, and so does what FSDP was told to ignore. \throws FormatError explaining unit by unit
/// what does not add up; UsageError when shapes are missing for a unit
std::unique_ptr<Source> un_flatten(std::shared_ptr<const Source> source, const UnFlattenOptions& options);

}  // namespace fsdp
