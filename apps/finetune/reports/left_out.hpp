#pragma once
// The ids that a run leaves out of its data: those beyond --seq-len, and those at the end of a stream that fill no row.
// Also the parts of --val-split.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp::detail {

/// \param option  the one that named `data`: "--train-data", "--val-data NAME"
/// \param takes_beginnings  the user said that the beginnings of documents are enough
/// \throws FormatError when more than half of the ids are left out, and neither --documents nor a --seq-len below the
///   length of a token file's rows asks for it
void refuse_most_left_out(const RunSetup& setup, const TokenLoader& rows, const std::string& option,
                          const std::string& data, bool takes_beginnings);

/// Logs the sizes of the parts of --val-split, and a line `cut` for each set of which ids are left out.
void log_left_out(const RunSetup& setup, const Logger& log);

/// Adds the same to a report: val_split, ids_not_trained_on, ids_not_validated_on.
void report_left_out(const RunSetup& setup, nlohmann::json& report);

}  // namespace fsdp::detail
