#pragma once
// Turns the command-line options about a checkpoint into the source that is converted, compared or shown.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/transform/transform.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// Options as given on the command line; empty: not given.
struct InputOptions {
  // The origin of the parameter shapes of an FSDP1 local state: at most one.
  std::string param_shapes, model_config, reference;
  std::vector<std::string> ties;  ///< "A=B"
  std::string optim_files;        ///< a glob pattern
  // Transforms of the input.
  std::vector<std::string> include, exclude;
  bool patterns_may_miss = false;   ///< of include and exclude: there is another source that they are for
  std::vector<std::string> rename;  ///< "REGEX=REPLACEMENT"
  bool model_only = false;
  std::string merge_adapter;  ///< a directory
  bool dequantize = false;
  std::string map;    ///< "mingpt-to-gpt2", ...; "none"
  std::string dtype;  ///< "bf16", "float32", ...
  QuantizeConfig quantize;
  // Set by the output.
  std::string config_from;                 ///< --config-from, if it has a config.json
  std::optional<ModelConfig> as_megatron;  ///< the model, for --to megatron
};

/// Opens a checkpoint. For a local state whose shapes are known the source has the original parameters; for a model of
/// Megatron-core, unless --map none, those of transformers.
/// \param must_unflatten  throw for a local state without known shapes, and for a model of Megatron-core that is no
/// dense Llama or Qwen, instead of returning what is stored \throws UsageError naming the options that give shapes;
/// what open_source(), un_flatten() and megatron_as_hf() throw
std::shared_ptr<const Source> open_input(const std::filesystem::path& path, const InputOptions& options,
                                         bool must_unflatten);

/// Refuses a source in which no tensor has an element.
/// \param original  the source that `source` is a part of, to name files of DeepSpeed in the message
/// \throws FormatError
void refuse_nothing(const Source& source, const Source& original, const std::filesystem::path& path);

/// Applies the transforms of the options in this order: --dequantize, --merge-adapter, --include, --exclude, --rename,
/// --model-only, --map, --to megatron, --dtype, --quantize.
std::shared_ptr<const Source> transformed(std::shared_ptr<const Source> source, const InputOptions& options);

/// \throws UsageError listing the known maps
NameMap parse_name_map(const std::string& text);
/// Parses PyTorch's names of dtypes and the usual short ones. \throws UsageError
DType parse_dtype(const std::string& text);
/// Splits "A=B" at the last '=', since an expression A may hold others. \throws UsageError naming `option`
std::pair<std::string, std::string> parse_pair(const std::string& text, const std::string& option);
/// The existing files that match a pattern, ordered by the numbers in their names (rank2 before rank10). \throws
/// MissingInput
std::vector<std::filesystem::path> expand_glob(const std::string& pattern, const std::string& option);

/// The configuration of a model after --merge-adapter, which may part the head from the embedding and add tokens; the
/// same without the option. \param source  the tensors after the merge
ModelConfig config_after_merge(ModelConfig config, const Source& source, const InputOptions& options);

/// The configuration of the model: from --model-config, else from the checkpoint, if any. \throws FormatError
std::optional<ModelConfig> known_model(const Source& source, const InputOptions& options);

}  // namespace fsdp
