#pragma once
// Options that several programs share, with LibTorch and without.
#include <optional>
#include <string>
#include <vector>

#include "apps/common/option_table.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/token_files/id_array.hpp"

namespace fsdp {

/// Adds --quantize and --double-quant.
/// \param help   help text of --quantize: its purpose in this program
void add_quantize_options(OptionTable& table, QuantizeConfig& options, const std::string& help);

/// Adds the options of programs that read conversations.
/// \param form_option  "--form" or "--data-form", without its second spelling
void add_conversation_options(OptionTable& table, ConversationOptions& o, const std::string& form_option);

/// Adds --stream and --documents of programs that read texts.
void add_layout_options(OptionTable& table, bool& stream, bool& documents);

/// Adds --token-dtype.
void add_token_dtype(OptionTable& table, std::optional<NumberType>& type);

/// Adds --tasks and --include-path. \param help  of --tasks
void add_task_names(OptionTable& t, std::vector<std::string>& names, std::vector<std::string>& folders,
                    const std::string& help);

}  // namespace fsdp
