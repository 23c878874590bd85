#include "lib/hub/hub_failure.hpp"

#include "lib/hub/retry.hpp"
#include "lib/hub/url.hpp"

namespace fsdp {
namespace {

bool holds_secret(std::string_view text, const HubSettings& settings) {
  // Cut where the text was cut: a part of a token is a secret too.
  constexpr std::size_t telling = 8;
  const auto is_in = [&](std::string_view secret) {
    for (std::size_t i = 0; i + telling <= secret.size(); ++i) {
      if (text.find(secret.substr(i, telling)) != std::string_view::npos) return true;
    }
    return false;
  };
  return is_in(settings.token) || is_in(url_credentials(settings.endpoint));
}

/// What the server says, as one short printable line.
std::string server_words(const HttpHead& head, const HubSettings& settings) {
  std::string text;
  for (const char c : head.header("x-error-message").substr(0, 200)) {
    if (static_cast<unsigned char>(c) >= 32 && c != 127) text += c;
  }
  // A server, or a proxy before it, may send back what it was sent; the log is read by others.
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
  return text + ". Check the name" + (request.repo.type == RepoType::model ? "; for a dataset add --type dataset" : "");
}

}  // namespace

Error hub_failure(const HttpHead& head, const HubRequest& request, const HubSettings& settings) {
  const auto& code = head.header("x-error-code");
  const auto what = request.path.empty() ? request.repo.name : request.repo.name + ": " + request.path;
  const auto said = server_words(head, settings);
  if (code == "GatedRepo") return {ExitCode::failed, gated(request, settings) + said};
  if (code == "RevisionNotFound") {
    return {ExitCode::bad_input, request.repo.name + " has no revision \"" + request.revision +
                                     "\": --revision takes a branch, a tag or a commit" + said};
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
  // 401 is also what the hub answers about repositories that do not exist when no one is logged in.
  if (code == "RepoNotFound" || head.status == 401 || head.status == 404) {
    return {ExitCode::bad_input, not_found(request, settings) + said};
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
    return {ExitCode::failed, what + ": the hub limits the number of requests (429)" +
                                  (asked ? " and asks to wait " + std::to_string(asked->count()) + " s" : "") +
                                  "; try later, with fewer --jobs or with a token in HF_TOKEN" + said};
  }
  return {ExitCode::failed, what + ": the hub answers with status " + std::to_string(head.status) + said};
}

}  // namespace fsdp
