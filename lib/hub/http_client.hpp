#pragma once
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

/// Percent-encodes all but letters, digits and "-._~" (RFC 3986), and the characters of `keep`.
std::string percent_encode(std::string_view text, std::string_view keep = {});

/// "scheme://host:port" in lower case with the port always written: what a secret may be sent to.
/// \throws IoError when `url` is not an absolute http or https URL
std::string url_origin(const std::string& url);

/// `reference` (absolute, or relative as in a Location header) as seen from `base`. \throws IoError
std::string resolve_url(const std::string& base, const std::string& reference);

/// `url` without user, password, query and fragment: what may be logged (the query of a signed URL is a secret).
std::string loggable_url(const std::string& url);

/// User and password of `url` as they stand there, for keeping them out of messages; "" without.
std::string_view url_credentials(std::string_view url);

/// Host of `url`, for messages.
std::string url_host(const std::string& url);

// The Link header field (RFC 8288), by which a server says where a listing goes on.

/// The target of the first link in `field` whose relation is `next`, as it stands there (it may be relative); several
/// fields are joined by commas. Names and relations in any case, relations in a list, values as tokens or quoted.
/// \return nothing where no link has this relation
/// \throws FormatError when `field` is no list of links and speaks of `next`: the rest of a listing must not be lost
std::optional<std::string> next_link(std::string_view field);

// One HTTP request at a time, over libcurl.

/// Header fields by their lower-case name; of equal ones the last, of `link` all, joined by commas.
using HttpHeaders = std::map<std::string, std::string>;

struct HttpHead {
  int status = 0;
  HttpHeaders headers;
  /// Value of a field, "" when it is not there. \param name in lower case
  const std::string& header(const std::string& name) const;
};

/// Takes a response as it arrives. Returning false ends the transfer; that is no error.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  virtual bool head(const HttpHead& head) = 0;
  virtual bool body(std::span<const std::byte> bytes) = 0;
};

/// A connection failed, was cut or stood still: trying again may help.
class TransferCut : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct HttpSettings {
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::seconds stall_timeout = std::chrono::seconds(10);  ///< without a byte
  std::string user_agent;
  std::string ca_bundle;  ///< file with certificates; "" for libcurl's own
};

/// The certificates that SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE name, else the first file that Linux
/// distributions keep them in; "" when there is none.
std::string find_ca_bundle();

/// Keeps its connections open between requests. Proxies come from http_proxy, https_proxy, all_proxy and no_proxy as
/// libcurl reads them. Not thread-safe: one for each thread.
class HttpClient {
 public:
  /// \param stop  asked several times a second; true ends the transfer at once
  HttpClient(const HttpSettings& settings, std::function<bool()> stop);
  ~HttpClient();

  /// GET. Follows no redirect and adds no header but what `headers` says ("Name: value"), Host, Accept and User-Agent.
  /// Exceptions of the sink pass through.
  /// \throws TransferCut, IoError for what no second try would change (certificates, a malformed URL)
  HttpHead get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink);

 private:
  struct Curl;
  std::unique_ptr<Curl> curl_;
};

}  // namespace fsdp
