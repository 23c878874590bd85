#pragma once
// A conversion as a value: what becomes of a checkpoint on its way, and how it is written. Programs fill it from their
// options; conversion/convert.hpp carries it out.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/layout.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// How a checkpoint is read, and what is changed on the way.
struct SourceChanges {
  // The origin of the parameter shapes of an FSDP1 local state: at most one. Empty: not given.
  std::string param_shapes, model_config, reference;
  std::vector<std::pair<std::string, std::string>> ties;  ///< (tied name, parameter whose storage it shares)
  std::vector<std::filesystem::path> optim_files;         ///< of a local state, in the order of the ranks
  SelectOptions select = {.must_match = true};
  std::string merge_adapter;  ///< a directory; empty: none
  bool dequantize = false;
  std::optional<NameMap> map;  ///< nothing: the one that the output needs
  std::optional<DType> dtype;  ///< of the model's floating-point tensors
  QuantizeConfig quantize;
  // Set by the output.
  std::string config_from;                 ///< a directory with config.json
  std::optional<ModelConfig> as_megatron;  ///< the model, to write it as Megatron-core does

  bool changes_tensors() const;
};

struct FormatWriter;

struct Conversion {
  std::string input;             ///< a checkpoint, as the user named it
  std::filesystem::path output;  ///< without a slash at its end
  const FormatWriter* writer = nullptr;
  SourceChanges changes;
  int num_shards = 0;                            ///< ranks to write for, in formats that have a file per rank; 0: one
  std::optional<std::uint64_t> max_shard_bytes;  ///< tensor data in one file, of a folder in Hugging Face's format
  std::string config_from;    ///< a directory whose config.json and tokenizer go along; empty: the input's
  std::string tokenizer;      ///< "gpt2" or a directory; empty: that of config_from, else tokenizer_of() the input
  std::string pre_tokenizer;  ///< llama.cpp's name; empty: by tokenizer.json
  std::string chat_template;  ///< its text; empty: that of the run or adapter, else the tokenizer's
  std::optional<GgufFileType> gguf_type;  ///< nothing: the type of most elements
  bool sync = false, overwrite = false;   ///< see CopyOptions
  std::string made_by;                    ///< see CopyOptions
  int jobs = 0;                           ///< see CopyOptions
};

/// The part of a conversion that a writer needs.
struct WriteRequest {
  const Conversion& options;
  const SourceChanges& changes;          ///< those of `options`, after FormatWriter::adapt()
  const Source& original;                ///< before the changes
  std::shared_ptr<const Source> source;  ///< after them; a writer may replace it
  /// The same without quantization, whose scales would have to be computed. To compare shapes.
  std::shared_ptr<const Source> numbers;
  const Logger& log;
};

/// How a format is written.
struct FormatWriter {
  std::string_view name;           ///< as programs name the format: "hf"
  std::string_view suffixes = {};  ///< of files in this format, each after a space; "" for a folder
  bool writes_model = false;       ///< the tensors of a model alone, under its names
  bool takes_other_types = false;  ///< it can hold the element types of safetensors that PyTorch lacks
  bool takes_shards = false;       ///< it can be written for several ranks
  bool takes_max_shard = false;    ///< its tensors can be spread over files
  bool takes_config = false;       ///< config.json and tokenizer files go along
  /// Completes the changes for this format. May be null. \throws RequestError on changes that do not go with it
  void (*adapt)(const Source& original, const Conversion& options, SourceChanges& changes, const Logger& log) = nullptr;
  /// \throws RequestError when the format cannot hold the tensors; FormatError
  std::unique_ptr<Target> (*make)(WriteRequest& request) = nullptr;

  bool is_folder() const { return suffixes.empty(); }
};

/// The configuration of the model: from SourceChanges::model_config, else from the checkpoint, if any.
/// \throws FormatError
std::optional<ModelConfig> known_model(const Source& source, const SourceChanges& changes);

/// The configuration of a model after an adapter was merged, which may part the head from the embedding and add tokens;
/// the same without an adapter. \param source  the tensors after the merge
ModelConfig config_after_merge(ModelConfig config, const Source& source, const SourceChanges& changes);

/// Drops optimizer, counters and other values. \param why  for the log
void keep_model_alone(const Source& source, const Logger& log, SourceChanges& changes, const std::string& why);

}  // namespace fsdp
