#include "lib/ranks/agree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <iterator>
#include <new>
#include <sstream>
#include <vector>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr char stopped = 'S';

/// Serializes an error: a letter for its class, the exit code of a plain Error, its advice, and the message. Empty
/// without an error.
std::string describe(const std::exception_ptr& error) {
  if (!error) return {};
  const auto text = [](std::string kind, const Error& caught) {
    const auto& advice = caught.advice();
    return fmt::format("{}{} {} {}{}", kind, static_cast<int>(advice.remedy), advice.subject.size(), advice.subject,
                       caught.what());
  };
  try {
    std::rethrow_exception(error);
  } catch (const Stopped& caught) {
    return text({stopped}, caught);
  } catch (const UsageError& caught) {
    return text("U", caught);
  } catch (const RequestError& caught) {
    return text("Q", caught);
  } catch (const FormatError& caught) {
    return text("F", caught);
  } catch (const MissingInput& caught) {
    return text("M", caught);
  } catch (const IoError& caught) {
    return text("I", caught);
  } catch (const Error& caught) {
    return text({'E', static_cast<char>(caught.code())}, caught);
  } catch (const std::bad_alloc&) {
    return "Rout of memory";
  } catch (const std::exception& caught) {
    return std::string("R") + caught.what();
  }
}

/// Throws what describe() has written.
[[noreturn]] void raise(const std::string& text) {
  const auto kind = text.front();
  if (kind == 'R') throw RuntimeFailure(text.substr(1));
  std::istringstream stream(text.substr(kind == 'E' ? 2 : 1));
  int remedy = 0;
  std::size_t length = 0;
  stream >> remedy >> length;
  stream.get();
  std::string rest(std::istreambuf_iterator<char>(stream), {});
  const Advice advice(static_cast<Remedy>(remedy), rest.substr(0, length));
  const auto what = rest.substr(length);
  switch (kind) {
    case stopped:
      throw Stopped(what);
    case 'U':
      throw UsageError(what, advice);
    case 'Q':
      throw RequestError(what, advice);
    case 'F':
      throw FormatError(what, advice);
    case 'M':
      throw MissingInput(what, advice);
    case 'I':
      throw IoError(what, advice);
    default:
      throw Error(static_cast<ExitCode>(text[1]), what, advice);
  }
}

std::string worst(const std::vector<std::string>& texts) {
  std::string found;
  for (const auto& text : texts) {
    if (!text.empty() && (found.empty() || (found.front() == stopped && text.front() != stopped))) found = text;
  }
  return found;
}

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

bool any_rank(ProcessGroup& group, bool local) { return group.all_reduce(local ? 1.0 : 0.0, Reduce::max) > 0; }

bool every_rank(ProcessGroup& group, bool local) { return !any_rank(group, !local); }

std::optional<RankProblem> first_problem(ProcessGroup& group, const std::string& local) {
  const double last = group.size();
  const auto first = static_cast<int>(group.all_reduce(local.empty() ? last : group.rank(), Reduce::min));
  if (first == group.size()) return std::nullopt;
  return RankProblem{first, group.broadcast_text(local, first)};
}

void require_equal_ranks(ProcessGroup& group, const std::vector<RankTrait>& traits) {
  if (group.size() == 1) return;
  std::string text;
  for (const auto& trait : traits) text += trait.local + '\n';
  // 52 bits of the text's hash fit a double exactly.
  const auto digest = static_cast<double>(std::hash<std::string>{}(text) >> 12);
  std::array<double, 2> extremes{digest, -digest};
  group.all_reduce(extremes, Reduce::max);
  if (extremes[0] == -extremes[1]) return;
  const auto texts = group.gather(host_name() + '\n' + text, 0);
  throw RequestError(group.broadcast_text(group.rank() == 0 ? difference(texts, traits, group) : "", 0));
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
