#include "lib/hub/retry.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <random>
#include <thread>

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::optional<seconds> whole_seconds(std::string_view digits) {
  std::uint32_t number = 0;
  const auto* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(seconds(number)) : std::nullopt;
}

/// `"api";r=0;t=55` -> 55 s. Source: draft-ietf-httpapi-ratelimit-headers-09 as the hub writes it.
std::optional<seconds> rate_limit_reset(std::string_view text) {
  std::optional<seconds> remaining, reset;
  while (!text.empty()) {
    const auto end = std::min(text.find(';'), text.size());
    auto field = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    if (field.substr(0, 2) == "r=") remaining = whole_seconds(field.substr(2));
    if (field.substr(0, 2) == "t=") reset = whole_seconds(field.substr(2));
  }
  return remaining == seconds(0) ? reset : std::nullopt;
}

}  // namespace

std::optional<seconds> wait_asked_by(const HttpHead& head) {
  if (const auto& text = head.header("retry-after"); !text.empty()) {
    if (const auto number = whole_seconds(text)) return number;
    if (const auto date = curl_getdate(text.c_str(), nullptr); date != -1) {
      // By the server's clock: this host's may be wrong.
      const auto answered = curl_getdate(head.header("date").c_str(), nullptr);
      return seconds(std::max<std::int64_t>(0, date - (answered != -1 ? answered : std::time(nullptr))));
    }
  }
  return rate_limit_reset(head.header("ratelimit"));
}

bool worth_retrying(int status) {
  return status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501 && status != 505);
}

bool Backoff::wait(std::optional<seconds> asked) {
  if (++failures_ >= policy_.attempts) return false;
  if (asked && *asked > policy_.longest_wait_asked) return false;
  milliseconds delay =
      std::min<milliseconds>(policy_.longest_delay, policy_.first_delay * (1LL << std::clamp(failures_ - 1, 0, 20)));
  thread_local std::minstd_rand random{std::random_device{}()};
  delay = milliseconds(static_cast<std::int64_t>(static_cast<double>(delay.count()) *
                                                 std::uniform_real_distribution<>(0.75, 1.25)(random)));
  if (asked) delay = std::max<milliseconds>(delay, *asked);
  const auto end = std::chrono::steady_clock::now() + delay;
  while (std::chrono::steady_clock::now() < end && !(stop_ && stop_())) {
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(50), end - std::chrono::steady_clock::now()));
  }
  return true;
}

}  // namespace fsdp
