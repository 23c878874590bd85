#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

struct RetryPolicy {
  int attempts = 8;  ///< consecutive attempts without progress
  std::chrono::milliseconds first_delay = std::chrono::seconds(1);
  std::chrono::milliseconds longest_delay = std::chrono::seconds(60);
  std::chrono::seconds longest_wait_asked =
      std::chrono::minutes(15);  ///< gives up when the server asks for a longer wait
  /// Hears after a first failure what is tried again and for how long; may be empty.
  std::function<void(const std::string& text)> tell = {};

  /// The waits between all attempts together, as long as the server asks for no others.
  std::chrono::milliseconds longest_trial() const;
};

/// The wait that a response asks for: Retry-After in seconds or as a date (RFC 9110), or else the t= of the hub's
/// RateLimit header when its r= (remaining requests) is 0; nullopt when the response asks for none.
std::optional<std::chrono::seconds> wait_asked_by(const HttpHead& head);

/// True for the statuses of temporary failures: 408, 425, 429 and 5xx except 501 and 505.
bool worth_retrying(int status);

/// Counts consecutive failures and waits between attempts. The wait doubles each time and has a random part, so that
/// many clients do not retry at the same moment.
class Backoff {
 public:
  /// \param stop  ends a wait early when it returns true
  Backoff(const RetryPolicy& policy, std::function<bool()> stop) : policy_(policy), stop_(std::move(stop)) {}
  /// Resets the count, because the failed attempt made progress.
  void progress() { failures_ = -1; }
  int failures() const { return failures_; }
  /// Waits after a failure. \return false when the attempts are used up or the server asks for a longer wait than the
  /// policy allows
  bool wait(std::optional<std::chrono::seconds> asked);

 private:
  RetryPolicy policy_;
  std::function<bool()> stop_;
  int failures_ = 0;
};

/// The request that the hub refused, for messages.
struct HubRequest {
  RepoId repo;
  std::string revision;
  std::string path;  ///< "" for the repository itself
};

/// Converts the hub's answer `head` (a status of 400 or more) to an error that says what to do. Its exit code is 4 (bad
/// input) when something does not exist, and 1 otherwise. Source of the X-Error-Code values: huggingface_hub,
/// utils/_http.py, hf_raise_for_status.
Error hub_failure(const HttpHead& head, const HubRequest& request, const HubSettings& settings);

}  // namespace fsdp
