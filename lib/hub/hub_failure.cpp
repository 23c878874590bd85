#include "lib/hub/hub_failure.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <random>
#include <thread>

#include "lib/base/types/remedy.hpp"
#include "lib/hub/http_client.hpp"

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

bool holds_secret(std::string_view text, const HubSettings& settings) {
  // The server's text is truncated, so it may hold a part of a token, which is a secret too.
  constexpr std::size_t telling = 8;
  const auto is_in = [&](std::string_view secret) {
    for (std::size_t i = 0; i + telling <= secret.size(); ++i) {
      if (text.find(secret.substr(i, telling)) != std::string_view::npos) return true;
    }
    return false;
  };
  return is_in(settings.token) || is_in(url_credentials(settings.endpoint));
}

/// The server's error message as one short printable line; "" when there is none.
std::string server_words(const HttpHead& head, const HubSettings& settings) {
  std::string text;
  for (const char c : head.header("x-error-message").substr(0, 200)) {
    if (static_cast<unsigned char>(c) >= 32 && c != 127) text += c;
  }
  // A server or proxy may echo the request, and other people read the log.
  if (holds_secret(text, settings)) return "";
  return text.empty() ? "" : " (the server says: " + text + ")";
}

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

std::string gated(const HubRequest& request, const HubSettings& settings) {
  const auto hub = without_slash(loggable_url(settings.endpoint));
  const auto page = hub + (request.repo.type == RepoType::dataset ? "/datasets/" : "/") + request.repo.name;
  auto text = request.repo.name + " is gated: its owner wants to know who downloads it. Ask for access at " + page;
  if (settings.token.empty()) {
    return text + ", make a token at " + hub + "/settings/tokens and put it into HF_TOKEN";
  }
  return text + " with the account that the token in " + settings.token_source +
         " belongs to; if it has access, the token must be allowed to read gated repositories";
}

std::string not_found(const HubRequest& request, const HubSettings& settings) {
  auto text = "no " + request.repo.type_word() + " \"" + request.repo.name + "\" at " +
              loggable_url(settings.endpoint) + ", or it is private and ";
  text += settings.token.empty() ? "no token was given (HF_TOKEN)"
                                 : "the token in " + settings.token_source + " may not read it";
  return text + ". Check the name";
}

}  // namespace

std::optional<seconds> wait_asked_by(const HttpHead& head) {
  if (const auto& text = head.header("retry-after"); !text.empty()) {
    if (const auto number = whole_seconds(text)) return number;
    if (const auto date = curl_getdate(text.c_str(), nullptr); date != -1) {
      // Relative to the server's clock, because this host's clock may be wrong.
      const auto answered = curl_getdate(head.header("date").c_str(), nullptr);
      return seconds(std::max<std::int64_t>(0, date - (answered != -1 ? answered : std::time(nullptr))));
    }
  }
  return rate_limit_reset(head.header("ratelimit"));
}

bool worth_retrying(int status) {
  return status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501 && status != 505);
}

milliseconds RetryPolicy::longest_trial() const {
  milliseconds all{0};
  for (int i = 0; i + 1 < attempts; ++i)
    all += std::min<milliseconds>(longest_delay, first_delay * (1LL << std::clamp(i, 0, 20)));
  return all;
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

Error hub_failure(const HttpHead& head, const HubRequest& request, const HubSettings& settings) {
  const auto& code = head.header("x-error-code");
  const auto what = request.path.empty() ? request.repo.name : request.repo.name + ": " + request.path;
  const auto said = server_words(head, settings);
  if (code == "GatedRepo") return {ExitCode::failed, gated(request, settings) + said};
  if (code == "RevisionNotFound") {
    return {
        ExitCode::bad_input,
        request.repo.name + " has no revision \"" + request.revision + "\"; a branch, a tag or a commit is one" + said,
        Remedy::of_revision};
  }
  if (code == "EntryNotFound") {
    return {ExitCode::bad_input, what + ": is not in revision \"" + request.revision + "\"" + said};
  }
  if (head.status == 401 && head.header("x-error-message") == "Invalid credentials in Authorization header") {
    return {ExitCode::failed, "the hub does not accept the token in " + settings.token_source +
                                  ": it is wrong or has expired; make a new one, or unset it for public repositories"};
  }
  if (head.status == 404 && !request.path.empty() && code.empty()) {
    return {ExitCode::bad_input, what + ": the hub lists this file and has it not (404)" + said};
  }
  // Without a token, the hub answers 401 for repositories that do not exist, too.
  if (code == "RepoNotFound" || head.status == 401 || head.status == 404) {
    return {ExitCode::bad_input, not_found(request, settings) + said,
            request.repo.type == RepoType::model ? Remedy::type_dataset : Remedy::none};
  }
  if (head.status == 403) {
    return {ExitCode::failed,
            what + ": access refused (403)" +
                (settings.token.empty() ? "; a token in HF_TOKEN may help"
                                        : "; the token in " + settings.token_source + " may lack the permission") +
                said};
  }
  if (head.status == 429) {
    const auto asked = wait_asked_by(head);
    return {ExitCode::failed,
            what + ": the hub limits the number of requests (429)" +
                (asked ? " and asks to wait " + std::to_string(asked->count()) + " s" : "") + said,
            Remedy::fewer_jobs};
  }
  return {ExitCode::failed, what + ": the hub answers with status " + std::to_string(head.status) + said};
}

}  // namespace fsdp
