#pragma once
// One HTTP request at a time, over libcurl.
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp {

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
