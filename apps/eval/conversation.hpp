#pragma once
// A conversation on stdin and stdout.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/evaluate/chat_session.hpp"

namespace fsdp {

/// Takes each line of rank 0's stdin as a message or a command (/help) until /quit or the end of stdin, and writes the
/// answers, and nothing else, to stdout as they come. Ctrl-C ends an answer, and between answers the program. On a
/// terminal "> " asks for a line. Collective; ranks wait for the user without the time limit of collectives.
/// \param print   false: answers are not written, only reported
/// \param report  receives "conversation": for each answer user, text, ended, prompt_tokens, tokens_generated
void converse(ProcessGroup& world, ChatSession& session, bool print, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
