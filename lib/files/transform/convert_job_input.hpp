#pragma once
// From what the command line says about a checkpoint to the source that is converted, compared or shown.
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

/// Options as they are written; empty ones were not given.
struct InputOptions {
  // Where the parameter shapes of an FSDP1 local state come from: at most one.
  std::string param_shapes, model_config, reference;
  std::vector<std::string> ties;  ///< "A=B"
  std::string optim_files;        ///< a glob pattern
  // What changes on the way.
  std::vector<std::string> include, exclude;
  std::vector<std::string> rename;  ///< "REGEX=REPLACEMENT"
  bool model_only = false;
  std::string merge_adapter;  ///< a directory
  bool dequantize = false;
  std::string map;    ///< "mingpt-to-gpt2", ...; "none"
  std::string dtype;  ///< "bf16", "float32", ...
  QuantizeConfig quantize;
};

/// Opens a checkpoint; of a local state the original parameters where their shapes are known.
/// \param must_unflatten  a local state without shapes is an error rather than shown as it is
/// \throws UsageError naming the options that give shapes; what open_source() and un_flatten() throw
std::shared_ptr<const Source> open_input(const std::filesystem::path& path, const InputOptions& options,
                                         bool must_unflatten);

/// A conversion of nothing is an error. \param original  what `source` is a part of: DeepSpeed's files are named
/// \throws FormatError where no tensor has an element
void refuse_nothing(const Source& source, const Source& original, const std::filesystem::path& path);

/// 4 bits, adapters, selection, names, dtype and 4 bits again, in this order: --dequantize, --merge-adapter, --include,
/// --exclude, --rename, --model-only, --map, --dtype, --quantize.
std::shared_ptr<const Source> transformed(std::shared_ptr<const Source> source, const InputOptions& options);

/// \throws UsageError listing what is known
NameMap parse_name_map(const std::string& text);
/// PyTorch's names and the usual short ones. \throws UsageError
DType parse_dtype(const std::string& text);
/// "A=B" at the last '=': an expression before it may hold others. \throws UsageError naming `option`
std::pair<std::string, std::string> parse_pair(const std::string& text, const std::string& option);
/// Existing files in the order of the numbers in their names (rank2 before rank10). \throws MissingInput
std::vector<std::filesystem::path> expand_glob(const std::string& pattern, const std::string& option);

/// What is known about the model: --model-config, else what the checkpoint carries. \throws FormatError
std::optional<ModelConfig> known_model(const Source& source, const InputOptions& options);

}  // namespace fsdp
