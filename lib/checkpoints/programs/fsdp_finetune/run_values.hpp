#pragma once
// The run of fsdp-finetune as a checkpoint records it: values below "run" in files of --save-final-full and in
// converted checkpoints, and the tokenizer, which is exported with the model.
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Checkpoints of a run of fsdp-finetune in `folder` (RUN/checkpoints), best first: the one that the link `latest`
/// leads to, under the link's name, then step-N from the highest N on. Copies of runs have a folder, a text or nothing
/// in the place of the link; such a folder counts by the step in its run.json where no step-N is of that step. \return
/// empty where there is none. \throws FormatError
std::vector<std::filesystem::path> checkpoints_of_run(const std::filesystem::path& folder);

/// The folder of the run's checkpoints when `path` stands for the newest of them: a run's folder, the folder of its
/// checkpoints, or `latest` in this one; empty for any other path.
std::filesystem::path folder_of_newest(const std::filesystem::path& path);

/// The newest checkpoint of a run of fsdp-finetune or of a trainer, when `path` stands for it: the run's folder, the
/// folder of its checkpoints, or `latest` in this one. Any other path as it is.
std::filesystem::path checkpoint_in_run(const std::filesystem::path& path);

/// A warning about the choice of checkpoint_in_run(): a newer folder of a trainer that holds no checkpoint; "" for
/// none.
std::string remark_of_newest(const std::filesystem::path& path);

/// A value as JSON; an argparse.Namespace becomes the dict of its attributes. \throws FormatError
nlohmann::json value_as_json(const Source& source, std::size_t value);

/// The values below "run", in the form of run.json; null when there are none or they are those of another program.
/// \throws FormatError
nlohmann::json run_in_values(const Source& source);

/// Fields "adapter", "weights" and "weights_hash" of a run with adapters, whose checkpoints hold the adapters alone;
/// null for any other checkpoint. \param checkpoint  a directory. \throws FormatError
nlohmann::json adapters_of_run(const std::filesystem::path& checkpoint);

/// "data" of the run that a checkpoint belongs to: run.json's, or that below "run" in a full file; null: none is known.
/// \throws FormatError
nlohmann::json run_data_of(const Source& checkpoint);

/// run.json of a checkpoint's directory; null when there is none.
nlohmann::json run_of_checkpoint(const std::filesystem::path& directory);

struct OwnTokenizer {
  std::string name;  ///< "gpt2" or a directory; empty: none is known
  std::string gone;  ///< the directory that the run names, where there is none now
};

/// Which tokenizer belongs to an input: the one in its folder (a model's or an adapter's) or GGUF file, else the run's.
/// Where a run added tokens, this is RUN/tokenizer beside its checkpoints or adapter, wherever the run lies now; else
/// run.json names it. \param input  a model, an adapter, a checkpoint or a run's folder; empty: none \param run
/// run_data_of() the input; null: that of run.json in its folder. \throws FormatError
OwnTokenizer tokenizer_of(const std::filesystem::path& input, const nlohmann::json& run);

/// The same of a base with an adapter: the adapter's, else the base's. An adapter's "gpt2" may be a default, so the
/// base's counts before this. \param adapter  empty: none
OwnTokenizer tokenizer_of(const std::filesystem::path& base, const nlohmann::json& run,
                          const std::filesystem::path& adapter);

struct ExportTokenizer {
  std::map<std::string, std::string> files;        ///< files of the built-in tokenizer, or made from a GGUF file
  std::optional<std::filesystem::path> directory;  ///< directory with the tokenizer files
  std::string missing;                             ///< why there is no tokenizer, for a message; "" when there is one
};

/// A text of run_data_of(); "" when there is none. \param key  such as "chat_template"
std::string text_of_run(const nlohmann::json& data, const std::string& key);

/// The chat template with which an adapter was trained: recorded in its checkpoint, or beside it as
/// chat_template.jinja, where transformers keeps it, too; "" when none is there. \param given  folder of the adapter,
/// of a checkpoint or a run
std::string chat_template_of_adapter(const std::filesystem::path& given);

/// \param name        "gpt2", a directory or ""
/// \param vocab_size  of the model; 0: unknown
ExportTokenizer find_export_tokenizer(const std::string& name, std::int64_t vocab_size);

}  // namespace fsdp
