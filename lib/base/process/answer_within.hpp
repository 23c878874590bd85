#pragma once
// Asks something that may never answer: a look at a file system whose server is gone does not end.
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

namespace fsdp {

/// How long a look at a run's folder may take in programs that say why a run is stuck.
inline constexpr std::chrono::seconds kLookAtFolder{3};

/// Runs `ask` in a thread of its own, which goes on also when no one waits for it: `ask` must hold copies of all it
/// uses. \throws std::system_error where no thread can be started
template <typename Ask>
auto ask_apart(Ask ask) {
  using Answer = std::invoke_result_t<Ask&>;
  auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(ask));
  auto answer = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  return answer;
}

/// The same. \return the answer; nothing if that took longer, or no thread can be started. What `ask` throws is thrown
template <typename Ask>
auto answer_within(std::chrono::milliseconds limit, Ask ask) -> std::optional<std::invoke_result_t<Ask&>> {
  std::future<std::invoke_result_t<Ask&>> answer;
  try {
    answer = ask_apart(std::move(ask));
  } catch (const std::system_error&) {
    return std::nullopt;
  }
  if (answer.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace fsdp
