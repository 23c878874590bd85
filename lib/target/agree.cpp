#include "lib/target/agree.hpp"

#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/target/copy.hpp"

namespace fsdp::detail {
namespace {

constexpr char stopped = 'S';

/// An error as text: its class as one letter, then its message. Empty for none.
std::string describe(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Stopped&) {
    return {stopped};
  } catch (const UsageError& caught) {
    return std::string("U") + caught.what();
  } catch (const FormatError& caught) {
    return std::string("F") + caught.what();
  } catch (const MissingInput& caught) {
    return std::string("M") + caught.what();
  } catch (const IoError& caught) {
    return std::string("I") + caught.what();
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
      throw Stopped();
    case 'U':
      throw UsageError(what);
    case 'F':
      throw FormatError(what);
    case 'M':
      throw MissingInput(what);
    case 'I':
      throw IoError(what);
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

void run_agreed(ProcessGroup& group, const std::function<void()>& action) {
  if (group.size() == 1) return action();
  std::exception_ptr error;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
  }
  if (group.all_reduce(error ? 1.0 : 0.0, Reduce::max) == 0.0) return;
  raise(group.broadcast_text(worst(group.gather(describe(error), 0)), 0));
}

}  // namespace fsdp::detail
