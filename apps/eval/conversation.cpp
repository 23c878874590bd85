#include "apps/eval/conversation.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/common/remedies.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kHelp =
    "A line is a message; the model answers.\n"
    "  /reset        forget the conversation, but not the system message\n"
    "  /system TEXT  the system message from now on; without TEXT: none\n"
    "  /help         this\n"
    "  /quit         end (or Ctrl-D)\n"
    "//TEXT sends /TEXT. Ctrl-C ends an answer; before an answer it ends the program.\n";

/// The lines of stdin, for all ranks.
class SharedLines {
 public:
  explicit SharedLines(ProcessGroup& world) : world_(world), on_terminal_(world.rank() == 0 && ::isatty(0) == 1) {}

  /// Returns the next line on every rank; nothing at the end of stdin. Collective.
  /// \throws IoError on every rank
  std::optional<std::string> next() {
    if (on_terminal_) std::cerr << "> " << std::flush;
    for (;;) {
      const auto news = text_of_root(world_, [&] { return wait(); });
      if (news == kEnd) return {};
      if (!news.empty()) return news.substr(1);
    }
  }
  bool on_terminal() const { return on_terminal_; }

 private:
  static constexpr const char* kEnd = "end";

  /// Returns "=" and a line, kEnd, or "" after a while without either: the other ranks' wait must not last longer than
  /// a collective may.
  std::string wait() {
    const auto while_ms =
        world_.size() == 1 ? -1 : std::clamp<int>(static_cast<int>(world_.timeout().count() / 4), 1, 5000);
    for (;;) {
      const auto end = pending_.find('\n');
      if (end != std::string::npos) return take(end, end + 1);
      if (at_end_) return pending_.empty() ? kEnd : take(pending_.size(), pending_.size());
      pollfd input{0, POLLIN, 0};
      const auto ready = ::poll(&input, 1, while_ms);
      if (ready == 0) return "";
      std::array<char, 4096> block;
      const auto count = ready < 0 ? -1 : ::read(0, block.data(), block.size());
      if (count < 0 && errno != EINTR) throw IoError("stdin: " + std::system_category().message(errno));
      if (count == 0) at_end_ = true;
      if (count > 0) pending_.append(block.data(), static_cast<std::size_t>(count));
    }
  }

  std::string take(std::size_t length, std::size_t with_end) {
    auto line = "=" + pending_.substr(0, length);
    pending_.erase(0, with_end);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  ProcessGroup& world_;
  bool on_terminal_;
  bool at_end_ = false;
  std::string pending_;  ///< on rank 0: read, but not a whole line yet
};

class Terminal {
 public:
  Terminal(ProcessGroup& world, ChatSession& session, bool print, const Logger& log)
      : world_(world), session_(session), print_(print && world.rank() == 0), log_(log), lines_(world) {}

  nlohmann::json run() {
    if (lines_.on_terminal()) log_.info("/help lists the commands");
    auto answers = nlohmann::json::array();
    while (const auto line = lines_.next()) {
      if (line->starts_with("/") && !line->starts_with("//")) {
        if (!obey(*line)) break;
      } else if (line->find_first_not_of(" \t") != std::string::npos) {
        answer(line->starts_with("//") ? line->substr(1) : *line, answers);
      }
    }
    return answers;
  }

 private:
  /// \return false for /quit
  bool obey(const std::string& line) {
    const auto blank = std::min(line.find(' '), line.size());
    const auto command = line.substr(0, blank);
    const auto first = line.find_first_not_of(' ', blank);
    const auto text = first == std::string::npos ? std::string() : line.substr(first);
    if (command == "/quit") return false;
    if (command == "/reset") {
      session_.reset();
    } else if (command == "/system") {
      session_.set_system(text.empty() ? std::nullopt : std::optional(text));
    } else if (command == "/help") {
      tell(kHelp);
    } else {
      tell("no command " + command + ": /help lists them, and //TEXT sends a message that begins with /\n");
    }
    return true;
  }

  void answer(const std::string& user, nlohmann::json& answers) {
    if (!is_utf8(user)) return tell("the line is not UTF-8, and is not sent\n");
    ChatAnswer answer;
    int received = 0;
    try {
      // While an answer is written, Ctrl-C sets a flag; otherwise it ends the process, as in the other parts.
      const StopSignal signal;
      answer = session_.ask(
          user, [&](const std::string& text) { print(text); }, [&] { return signal.received() != 0; });
      received = signal.received();
    } catch (const FormatError& error) {
      return tell("not sent: " + told(error) + "\n");
    }
    print("\n");
    // Other signals end the process, whose threads but one block them: raise() would not.
    if (received != 0 && received != SIGINT) ::kill(::getpid(), received);
    if (answer.forgotten > 0)
      tell(fmt::format("{} dropped: the context has no room for them\n",
                       answer.forgotten == 1 ? "the oldest message is"
                                             : fmt::format("the {} oldest messages are", answer.forgotten)));
    if (answer.ended == "length")
      tell(fmt::format("the answer ends after {} (--num-tokens)\n", format_count_of(answer.ids.size(), "token")));
    if (answer.ended == "context")
      tell(fmt::format("the answer ends with the {} positions of the model: /reset begins a new conversation\n",
                       answer.prompt.size() + answer.ids.size()));
    answers.push_back({{"user", user},
                       {"text", json_text(answer.text)},
                       {"ended", answer.ended},
                       {"messages_dropped", answer.forgotten},
                       {"prompt_tokens", answer.prompt},
                       {"tokens_generated", answer.ids}});
  }

  void print(const std::string& text) const {
    if (print_) std::cout << text << std::flush;
  }
  void tell(std::string_view text) const {
    if (world_.rank() == 0) std::cerr << text << std::flush;
  }

  ProcessGroup& world_;
  ChatSession& session_;
  bool print_;
  const Logger& log_;
  SharedLines lines_;
};

}  // namespace

void converse(ProcessGroup& world, ChatSession& session, bool print, const Logger& log, nlohmann::json& report) {
  report["conversation"] = Terminal(world, session, print, log).run();
}

}  // namespace fsdp
