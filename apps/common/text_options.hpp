#pragma once
// Options that all programs that read conversations share.
#include <CLI/CLI.hpp>
#include <string>

#include "lib/text/chat/conversation_options.hpp"

namespace fsdp {

/// \param form_option  "--form" or "--data-form", without its second spelling
/// \param group  section of the help
void add_conversation_options(CLI::App& app, ConversationOptions& o, const std::string& form_option,
                              const std::string& group);

}  // namespace fsdp
