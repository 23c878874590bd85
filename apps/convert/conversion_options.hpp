#pragma once
// The options of fsdp-ckpt-convert, and what they say in the terms of the library.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/messages/job_options.hpp"
#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"

namespace fsdp {

/// Options about a checkpoint as given on the command line; empty: not given.
struct InputOptions {
  // The origin of the parameter shapes of an FSDP1 local state: at most one.
  std::string param_shapes, model_config, reference;
  std::vector<std::string> ties;  ///< "A=B"
  std::string optim_files;        ///< a glob pattern
  // Changes.
  std::vector<std::string> include, exclude;
  std::vector<std::string> rename;  ///< "REGEX=REPLACEMENT"
  bool model_only = false;
  std::string merge_adapter;  ///< a directory
  bool dequantize = false;
  std::string map;    ///< "mingpt-to-gpt2", ...; "none"
  std::string dtype;  ///< "bf16", "float32", ...
  QuantizeConfig quantize;
};

struct ConvertOptions {
  std::vector<std::string> paths;  ///< IN OUT; for --verify A B; for --inspect and --check IN; for --prune RUN
  bool inspect = false, verify = false, check = false, prune = false;
  int keep_optimizer = 1;  ///< for --prune
  InputOptions input;
  // Output.
  std::string to;
  int shards = 0;              ///< 0: not given
  std::string max_shard_size;  ///< empty: not given
  std::string config_from;
  std::string pre_tokenizer;  ///< for gguf; empty: by tokenizer.json
  bool sync = false, overwrite = false, dry_run = false;
  // How.
  int jobs = 0;
  double tolerance = 0;
  double progress_seconds = 10;  ///< between progress lines when stderr is no terminal
  JobOptions job;
};

/// The changes that the options about a checkpoint ask for. \throws UsageError naming the option; MissingInput
SourceChanges changes_of(const InputOptions& options);

/// The conversion from the first path to the second. \throws UsageError naming options that do not go together
Conversion conversion_of(const ConvertOptions& options);

/// Chooses the format: that of `to`, else by the suffix of the name; any other name is a directory, dcp with --shards
/// and hf with --max-shard-size. \throws UsageError when nothing decides, or when an option does not go with the format
const FormatWriter& choose_writer(const std::filesystem::path& output, std::string_view to, bool shards_given,
                                  bool max_shard_size_given);

/// Parses a size in bytes such as "500MB" (10^6), "5GiB" (2^30) or "1000". \throws UsageError naming `option` unless
/// the size is positive
std::uint64_t parse_size(std::string_view text, std::string_view option);
/// \throws UsageError listing the known maps
NameMap parse_name_map(const std::string& text);
/// "mingpt-to-gpt2, ..., none": the maps that parse_name_map() knows.
std::string name_maps();
/// Parses PyTorch's names of dtypes and the usual short ones. \throws UsageError
DType parse_dtype(const std::string& text);
/// Parses the type of a GGUF file: "q8_0" or what parse_dtype() reads. \throws UsageError
GgufFileType parse_gguf_type(const std::string& text);
/// Splits "A=B" at the last '=', since an expression A may hold others. \throws UsageError naming `option`
std::pair<std::string, std::string> parse_pair(const std::string& text, const std::string& option);
/// The existing files that match a pattern, ordered by the numbers in their names (rank2 before rank10). \throws
/// MissingInput
std::vector<std::filesystem::path> expand_glob(const std::string& pattern, const std::string& option);

}  // namespace fsdp
