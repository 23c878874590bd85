#include "lib/hub/url.hpp"

#include <curl/curl.h>

#include <memory>
#include <optional>

#include "lib/base/error.hpp"
#include "lib/base/lower_case.hpp"

namespace fsdp {
namespace {

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, FreeUrl>;

UrlHandle parse(const std::string& url) {
  UrlHandle handle(curl_url());
  if (!handle) throw std::bad_alloc();
  const auto code = curl_url_set(handle.get(), CURLUPART_URL, url.c_str(), 0);
  if (code != CURLUE_OK) {
    // Nobody can tell where the credentials of something malformed end: at its last '@' at the latest.
    const auto at = url.rfind('@');
    const auto shown = at == std::string::npos ? url : "..." + url.substr(at);
    throw IoError("\"" + shown.substr(0, shown.find_first_of("?#")) + "\" is not a URL (http://HOST or https://HOST)");
  }
  return handle;
}

std::optional<std::string> part(const UrlHandle& url, CURLUPart which, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, flags) != CURLUE_OK) return std::nullopt;
  const std::unique_ptr<char, decltype(&curl_free)> owner(text, &curl_free);
  return std::string(text);
}

}  // namespace

std::string percent_encode(std::string_view text, std::string_view keep) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       keep.find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += "0123456789ABCDEF"[byte >> 4];
      out += "0123456789ABCDEF"[byte & 15];
    }
  }
  return out;
}

std::string url_origin(const std::string& url) {
  const auto handle = parse(url);
  const auto scheme = ascii_lower(part(handle, CURLUPART_SCHEME).value_or(""));
  if (scheme != "http" && scheme != "https") {
    throw IoError("\"" + loggable_url(url) + "\": only http and https are spoken");
  }
  return scheme + "://" + ascii_lower(part(handle, CURLUPART_HOST).value_or("")) + ":" +
         part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT).value_or("");
}

std::string resolve_url(const std::string& base, const std::string& reference) {
  const auto handle = parse(base);
  if (curl_url_set(handle.get(), CURLUPART_URL, reference.c_str(), 0) != CURLUE_OK) {
    throw IoError(loggable_url(base) + ": redirects to something that is not a URL");
  }
  return part(handle, CURLUPART_URL).value_or("");
}

std::string loggable_url(const std::string& url) {
  const auto handle = parse(url);
  for (const auto which : {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    curl_url_set(handle.get(), which, nullptr, 0);
  }
  return part(handle, CURLUPART_URL).value_or("");
}

std::string_view url_credentials(std::string_view url) {
  const auto begin = url.find("://");
  if (begin == std::string_view::npos) return {};
  url.remove_prefix(begin + 3);
  const auto at = url.substr(0, url.find_first_of("/?#")).rfind('@');
  return at == std::string_view::npos ? std::string_view() : url.substr(0, at);
}

std::string url_host(const std::string& url) { return part(parse(url), CURLUPART_HOST).value_or(""); }

}  // namespace fsdp
