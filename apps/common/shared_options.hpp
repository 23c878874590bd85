#pragma once
// Options that several programs share, with LibTorch and without.
#include <CLI/CLI.hpp>
#include <string>

#include "lib/models/config/quantize_config.hpp"
#include "lib/text/chat/conversation_options.hpp"

namespace fsdp {

/// Adds --quantize and --double-quant.
/// \param help   help text of --quantize: its purpose in this program
/// \param group  section of the help
void add_quantize_options(CLI::App& app, QuantizeConfig& options, const std::string& help, const std::string& group);

/// Adds the options of programs that read conversations.
/// \param form_option  "--form" or "--data-form", without its second spelling
/// \param group  section of the help
void add_conversation_options(CLI::App& app, ConversationOptions& o, const std::string& form_option,
                              const std::string& group);

}  // namespace fsdp
