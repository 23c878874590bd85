#pragma once
// What fsdp-finetune says about its run, where it is among a file's values: --save-final-full, and its checkpoints
// after a conversion.
// The tokenizer that goes along with an exported model.
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// A value as JSON; an argparse.Namespace is its dict of attributes. \throws FormatError
nlohmann::json value_as_json(const Source& source, std::size_t value);

/// Everything below "run", as run.json has it; null: there is none, or it is another program's. \throws FormatError
nlohmann::json run_in_values(const Source& source);

struct ExportTokenizer {
  std::map<std::string, std::string> files;        ///< of the built-in one
  std::optional<std::filesystem::path> directory;  ///< that has it
  std::string missing;                             ///< why there is none, for a message; "" there is one
};

/// The tokenizer that fsdp-finetune recorded in the checkpoint (run.json, or "run" of a full file); "" none.
std::string recorded_tokenizer(const Source& checkpoint);

/// \param name        "gpt2", a directory or ""
/// \param vocab_size  of the model; 0: unknown
ExportTokenizer find_export_tokenizer(const std::string& name, std::int64_t vocab_size);

}  // namespace fsdp
