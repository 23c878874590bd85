#include "lib/ranks/agree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <new>
#include <sstream>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/scheduler.hpp"

namespace fsdp {
namespace {

constexpr char stopped = 'S';

/// Serializes an error: a letter for its class, the exit code of a plain Error, and the message. Empty without an
/// error.
std::string describe(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Stopped& caught) {
    return stopped + std::string(caught.what());
  } catch (const UsageError& caught) {
    return std::string("U") + caught.what();
  } catch (const FormatError& caught) {
    return std::string("F") + caught.what();
  } catch (const MissingInput& caught) {
    return std::string("M") + caught.what();
  } catch (const IoError& caught) {
    return std::string("I") + caught.what();
  } catch (const Error& caught) {
    return std::string{'E', static_cast<char>(caught.code())} + caught.what();
  } catch (const std::bad_alloc&) {
    return "Rout of memory";
  } catch (const std::exception& caught) {
    return std::string("R") + caught.what();
  }
}

[[noreturn]] void raise(const std::string& text) {
  const auto what = text.substr(1);
  switch (text.front()) {
    case stopped:
      throw Stopped(what);
    case 'U':
      throw UsageError(what);
    case 'F':
      throw FormatError(what);
    case 'M':
      throw MissingInput(what);
    case 'I':
      throw IoError(what);
    case 'E':
      throw Error(static_cast<ExitCode>(what.front()), what.substr(1));
    default:
      throw RuntimeFailure(what);
  }
}

std::string worst(const std::vector<std::string>& texts) {
  std::string found;
  for (const auto& text : texts) {
    if (!text.empty() && (found.empty() || (found.front() == stopped && text.front() != stopped))) found = text;
  }
  return found;
}

}  // namespace

bool any_rank(ProcessGroup& group, bool mine) { return group.all_reduce(mine ? 1.0 : 0.0, Reduce::max) > 0; }

bool every_rank(ProcessGroup& group, bool mine) { return !any_rank(group, !mine); }

std::optional<RankProblem> first_problem(ProcessGroup& group, const std::string& mine) {
  const double last = group.size();
  const auto first = static_cast<int>(group.all_reduce(mine.empty() ? last : group.rank(), Reduce::min));
  if (first == group.size()) return std::nullopt;
  return RankProblem{first, group.broadcast_text(mine, first)};
}

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// \param texts  by rank: the host, then a line per trait
std::string difference(const std::vector<std::string>& texts, const std::vector<RankTrait>& traits,
                       const ProcessGroup& group) {
  std::vector<std::vector<std::string>> ranks;
  for (const auto& text : texts) ranks.push_back(lines_of(text));
  const auto& first = ranks.front();
  for (std::size_t t = 1; t < first.size(); ++t) {
    const auto differs = [&](const auto& lines) { return lines.size() <= t || lines[t] != first[t]; };
    const auto other = std::find_if(ranks.begin(), ranks.end(), differs);
    if (other == ranks.end()) continue;
    const auto more = std::count_if(other, ranks.end(), differs) - 1;
    return fmt::format(
        "the ranks differ in {}: rank {} ({}) has {}, rank {} ({}) has {}{}. Start all ranks with one program, one "
        "environment and one kind of device",
        traits[t - 1].what, group.world_rank(0), first[0], first[t],
        group.world_rank(static_cast<int>(other - ranks.begin())), other->front(),
        other->size() > t ? (*other)[t] : "nothing",
        more > 0 ? fmt::format(" (so do{} {} other{})", more == 1 ? "es" : "", more, more == 1 ? "" : "s") : "");
  }
  return "the ranks differ in what they compute with";
}

}  // namespace

void require_equal_ranks(ProcessGroup& group, const std::vector<RankTrait>& traits) {
  if (group.size() == 1) return;
  std::string text;
  for (const auto& trait : traits) text += trait.mine + '\n';
  // 52 bits of the text's hash fit a double exactly.
  const auto digest = static_cast<double>(std::hash<std::string>{}(text) >> 12);
  std::array<double, 2> extremes{digest, -digest};
  group.all_reduce(extremes, Reduce::max);
  if (extremes[0] == -extremes[1]) return;
  const auto texts = group.gather(host_name() + '\n' + text, 0);
  throw UsageError(group.broadcast_text(group.rank() == 0 ? difference(texts, traits, group) : "", 0));
}

void run_agreed(ProcessGroup& group, const std::function<void()>& action) {
  if (group.size() == 1) return action();
  std::exception_ptr error;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
  }
  if (!any_rank(group, error != nullptr)) return;
  raise(group.broadcast_text(worst(group.gather(describe(error), 0)), 0));
}

std::string text_of_root(ProcessGroup& group, const std::function<std::string()>& action) {
  std::string text;
  run_agreed(group, [&] {
    if (group.rank() == 0) text = action();
  });
  return group.broadcast_text(text, 0);
}

}  // namespace fsdp
