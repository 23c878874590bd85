#pragma once
// Runs the command of --on-event.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/messages/log.hpp"

namespace fsdp::detail {

/// Runs `/bin/sh -c COMMAND` and waits for it; never throws. Its output, and how it failed, are lines of the log. It
/// has this process's environment without the variables of the ranks' launcher, no standard input, none of this
/// process's files, the signals as this process was started with them, and a process group of its own. After `limit`
/// the group is killed. What the command left running in the background is not waited for.
/// \param name       of the event, for the log
/// \param variables  names and values that the environment gets beside
void run_event_command(const std::string& name, const std::string& command,
                       const std::vector<std::pair<std::string, std::string>>& variables,
                       std::chrono::milliseconds limit, const Logger& log);

}  // namespace fsdp::detail
