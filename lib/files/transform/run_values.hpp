#pragma once
// What fsdp-finetune says about its run, where it is among a file's values: --save-final-full, and its checkpoints
// after a conversion.
#include <nlohmann/json_fwd.hpp>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// A value as JSON; an argparse.Namespace is its dict of attributes. \throws FormatError
nlohmann::json value_as_json(const Source& source, std::size_t value);

/// Everything below "run", as run.json has it; null: there is none, or it is another program's. \throws FormatError
nlohmann::json run_in_values(const Source& source);

}  // namespace fsdp
