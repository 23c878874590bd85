#include "lib/ranks/agree.hpp"

#include <exception>
#include <new>
#include <vector>

#include "lib/base/error.hpp"

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
