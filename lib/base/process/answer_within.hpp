#pragma once
// Asks something that may never answer: a file system whose server is gone blocks whoever looks at it.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace fsdp {

/// How long a look at a run's folder may take in programs that say why a run is stuck.
inline constexpr std::chrono::seconds kLookAtFolder{3};

/// Runs `ask` in a thread of its own, which goes on where there is no answer: `ask` must hold copies of all it uses.
/// \return what it returned, or nothing if that took longer; what it threw is thrown
template <typename Ask>
auto answer_within(std::chrono::milliseconds limit, Ask ask) -> std::optional<std::invoke_result_t<Ask&>> {
  using Answer = std::invoke_result_t<Ask&>;
  auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(ask));
  auto answer = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (answer.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace fsdp
