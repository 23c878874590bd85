#include "lib/base/process/process_identity.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

struct ProcessState {
  char letter;
  std::uint64_t start_ticks;
};

/// Fields 3 and 22 of /proc/PID/stat (proc(5)); the second field may hold spaces and parentheses.
std::optional<ProcessState> process_state(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const auto end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end_of_name + 1));
  ProcessState state{};
  std::string skipped;
  fields >> state.letter;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  fields >> state.start_ticks;
  return fields ? std::optional(state) : std::nullopt;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 256> target{};
  const auto length = ::readlink(path, target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

std::string utc_now() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 64> text{};
  if (::gmtime_r(&now, &parts) == nullptr) return {};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

}  // namespace

ProcessIdentity ProcessIdentity::own() {
  ProcessIdentity own;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) own.host = name.data();
  own.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  own.pid_namespace = link_target("/proc/self/ns/pid");
  own.pid = ::getpid();
  if (const auto state = process_state("self")) own.start_ticks = state->start_ticks;
  own.job = scheduler_job();
  own.since = utc_now();
  return own;
}

ProcessIdentity ProcessIdentity::from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    ProcessIdentity other;
    other.host = json.at("host").get<std::string>();
    other.boot_id = json.at("boot_id").get<std::string>();
    other.pid_namespace = json.at("pid_namespace").get<std::string>();
    other.pid = json.at("pid").get<std::int64_t>();
    other.start_ticks = json.at("start_ticks").get<std::uint64_t>();
    other.job = json.value("job", std::string());
    other.since = json.value("since", std::string());
    return other;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(std::string("a claim does not name a process: ") + error.what());
  }
}

std::string ProcessIdentity::to_json() const {
  const nlohmann::json claim{{"host", host},  {"boot_id", boot_id},         {"pid_namespace", pid_namespace},
                             {"pid", pid},    {"start_ticks", start_ticks}, {"job", job},
                             {"since", since}};
  return json_text(claim);
}

bool ProcessIdentity::is_comparable(const ProcessIdentity& here) const {
  return !boot_id.empty() && !pid_namespace.empty() && here.boot_id == boot_id && here.pid_namespace == pid_namespace &&
         pid > 0 && here.start_ticks != 0;
}

char ProcessIdentity::state() const {
  const auto state = process_state(std::to_string(pid));
  // If /proc hides processes of other users (hidepid), only the error of kill(2) distinguishes missing from hidden
  // ones.
  if (!state) return ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH ? kEnded : kUnknownState;
  return state->start_ticks != start_ticks || state->letter == 'Z' ? kEnded : state->letter;
}

std::string ProcessIdentity::words() const {
  auto text = "process " + std::to_string(pid) + " on " + host;
  if (!job.empty()) text += " (" + job + ")";
  if (!since.empty()) text += ", since " + since;
  return text;
}

}  // namespace fsdp
