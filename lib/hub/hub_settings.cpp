#include "lib/hub/hub_settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/http_client.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

std::string without_white_space(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

fs::path expanded(const std::string& text, const Environment& environment) {
  if (text != "~" && text.rfind("~/", 0) != 0) return text;
  const auto home = environment("HOME");
  if (home.empty()) throw UsageError("\"" + text + "\": HOME is not set, so nobody knows where ~ is");
  return home + text.substr(1);
}

std::chrono::seconds timeout(const Environment& environment, const char* name) {
  const auto text = environment(name);
  if (text.empty()) return std::chrono::seconds(10);
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number <= 0) {
    throw UsageError(std::string(name) + "=" + text + ": a number of seconds is expected");
  }
  return std::chrono::seconds(number);
}

void read_token(HubSettings& settings, const Environment& environment, const fs::path& home) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings.token = without_white_space(environment(name));
    settings.token_source = name;
    if (!settings.token.empty()) break;
  }
  if (settings.token.empty() && !is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    const auto named = environment("HF_TOKEN_PATH");
    if (named.empty() && home.empty()) return;
    const auto path = named.empty() ? home / "token" : expanded(named, environment);
    std::error_code error;
    if (fs::is_regular_file(path, error)) settings.token = without_white_space(read_text_file(path, 65536));
    settings.token_source = path.string();
  }
  const bool odd =
      std::any_of(settings.token.begin(), settings.token.end(), [](unsigned char c) { return c <= 32 || c >= 127; });
  if (odd) throw UsageError(settings.token_source + ": the token holds characters that no token has");
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
}

HubSettings hub_settings(const Environment& environment) {
  HubSettings settings;
  settings.endpoint = environment("HF_ENDPOINT");
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (!settings.endpoint.empty() && settings.endpoint.back() == '/') settings.endpoint.pop_back();
  try {
    url_origin(settings.endpoint);
  } catch (const IoError& error) {
    throw UsageError(std::string("HF_ENDPOINT: ") + error.what());
  }

  auto home = expanded(environment("HF_HOME"), environment);
  if (home.empty()) {
    const auto xdg = expanded(environment("XDG_CACHE_HOME"), environment);
    // Without HOME there is no cache. That is an error only when a cache is used; see SnapshotStore::in_cache().
    if (!xdg.empty()) home = xdg / "huggingface";
    if (xdg.empty() && !environment("HOME").empty()) home = expanded("~/.cache", environment) / "huggingface";
  }
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (settings.cache_dir.empty()) settings.cache_dir = expanded(environment(name), environment);
  }
  if (settings.cache_dir.empty() && !home.empty()) settings.cache_dir = home / "hub";

  read_token(settings, environment, home);
  const auto offline = environment("HF_HUB_OFFLINE");
  settings.offline = is_true(offline.empty() ? environment("TRANSFORMERS_OFFLINE") : offline);
  settings.symlinks = !is_true(environment("HF_HUB_DISABLE_SYMLINKS"));
  settings.connect_timeout = timeout(environment, "HF_HUB_ETAG_TIMEOUT");
  settings.stall_timeout = timeout(environment, "HF_HUB_DOWNLOAD_TIMEOUT");
  return settings;
}

}  // namespace fsdp
