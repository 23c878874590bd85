#pragma once
// HTTP over libcurl: URLs, the Link header field, and a client that sends one request at a time.
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Percent-encodes all characters except letters, digits, "-._~" (RFC 3986) and those in `keep`.
std::string percent_encode(std::string_view text, std::string_view keep = {});

/// The origin "scheme://host:port" in lower case, always with a port. A secret may be sent to its own origin only.
/// \throws IoError when `url` is not an absolute http or https URL
std::string url_origin(const std::string& url);

/// Resolves `reference`, which is absolute or relative to `base`, as a Location header is. \throws IoError
std::string resolve_url(const std::string& base, const std::string& reference);

/// `url` without user, password, query and fragment, for logs. The query of a signed URL is a secret.
std::string loggable_url(const std::string& url);

/// User and password of `url`, not decoded, so that messages can be checked for them; "" when it has none.
std::string_view url_credentials(std::string_view url);

/// Host of `url`, for messages.
std::string url_host(const std::string& url);

/// Target of the first link with the relation `next` in a Link header field (RFC 8288), which servers use for paginated
/// listings. The target may be relative. Several fields are joined by commas. Names and relations may be in any case,
/// relations may be lists, and values may be tokens or quoted.
/// \return nullopt when no link has this relation
/// \throws FormatError when `field` is malformed and mentions `next`, so that the rest of a listing is not lost
std::optional<std::string> next_link(std::string_view field);

/// Header fields by lower-case name. The last of several equal fields counts; several `link` fields are joined by
/// commas.
using HttpHeaders = std::map<std::string, std::string>;

struct HttpHead {
  int status = 0;
  HttpHeaders headers;
  /// Value of a field, "" when it is absent. \param name  in lower case
  const std::string& header(const std::string& name) const;
};

/// Receives a response as it arrives. Returning false ends the transfer without an error.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  virtual bool head(const HttpHead& head) = 0;
  virtual bool body(std::span<const std::byte> bytes) = 0;
};

/// Thrown when a connection failed, was cut or stalled, so that a retry may succeed.
class TransferCut : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct HttpSettings {
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::seconds stall_timeout = std::chrono::seconds(10);  ///< longest time without a received byte
  std::string user_agent;
  std::string ca_bundle;  ///< PEM file of trusted certificates; "" for libcurl's default
};

/// The certificate file named by SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE, or else the first of the usual
/// locations of Linux distributions that exists; "" when none does.
std::string find_ca_bundle();

/// Reuses connections between requests. libcurl takes proxies from http_proxy, https_proxy, all_proxy and no_proxy. Not
/// thread-safe: each thread needs its own client.
class HttpClient {
 public:
  /// \param stop  called several times a second; returning true ends the transfer at once
  HttpClient(const HttpSettings& settings, std::function<bool()> stop);
  ~HttpClient();

  /// Sends a GET request. Does not follow redirects. Sends `headers` ("Name: value"), Host, Accept and User-Agent only.
  /// Exceptions of the sink propagate.
  /// \throws TransferCut; IoError for errors that a retry cannot fix (certificates, a malformed URL)
  HttpHead get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink);

 private:
  struct Curl;
  std::unique_ptr<Curl> curl_;
};

}  // namespace fsdp
