#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lib/base/error.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

struct RetryPolicy {
  int attempts = 8;  ///< in a row without progress
  std::chrono::milliseconds first_delay = std::chrono::seconds(1);
  std::chrono::milliseconds longest_delay = std::chrono::seconds(60);
  std::chrono::seconds longest_wait_asked =
      std::chrono::minutes(15);  ///< a server that asks for more is not waited for
};

/// How long a response asks to wait: Retry-After in seconds or as a date (RFC 9110), else the t= of the hub's
/// RateLimit header when its r= is 0.
std::optional<std::chrono::seconds> wait_asked_by(const HttpHead& head);

/// True for the statuses that a later request may not meet: 408, 425, 429 and 5xx but for 501 and 505.
bool worth_retrying(int status);

/// Counts failures in a row and waits between them: twice as long each time, with a random part so that many clients do
/// not come back at once.
class Backoff {
 public:
  /// \param stop  ends a wait early
  Backoff(const RetryPolicy& policy, std::function<bool()> stop) : policy_(policy), stop_(std::move(stop)) {}
  /// The attempt that failed brought something: it does not count.
  void progress() { failures_ = -1; }
  int failures() const { return failures_; }
  /// Waits after a failure. \return false when the attempts are used up or the server asks for more patience than the
  /// policy has
  bool wait(std::optional<std::chrono::seconds> asked);

 private:
  RetryPolicy policy_;
  std::function<bool()> stop_;
  int failures_ = 0;
};

/// What was asked for when the hub refused.
struct HubRequest {
  RepoId repo;
  std::string revision;
  std::string path;  ///< "" for the repository itself
};

/// The hub's answer `head` (a status of 400 and more) in words that say what to do. Not found is bad input (exit code
/// 4), everything else a failure (1). Source of the codes: huggingface_hub utils/_http.py, hf_raise_for_status.
Error hub_failure(const HttpHead& head, const HubRequest& request, const HubSettings& settings);

}  // namespace fsdp
