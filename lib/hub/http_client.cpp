#include "lib/hub/http_client.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/hub/url.hpp"

namespace fsdp {
namespace {

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

HeaderList make_list(const std::vector<std::string>& headers) {
  HeaderList list;
  for (const auto& header : headers) {
    auto* longer = curl_slist_append(list.get(), header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    list.release();
    list.reset(longer);
  }
  return list;
}

struct Library {
  Library() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~Library() { curl_global_cleanup(); }
};

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// What libcurl's callbacks work on.
struct Transfer {
  HttpSink& sink;
  const std::function<bool()>& stop;
  HttpHead head{};
  bool ended_by_sink = false;
  std::exception_ptr failure{};

  bool header_line(std::string_view line) {
    if (line.substr(0, 5) == "HTTP/") {
      head = {};
      const auto space = line.find(' ');
      if (space != std::string_view::npos) head.status = std::atoi(std::string(line.substr(space + 1)).c_str());
    } else if (trim(line).empty()) {
      return head.status < 200 || guarded([&] { return sink.head(head); });
    } else if (const auto colon = line.find(':'); colon != std::string_view::npos) {
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
      auto& value = head.headers[name];
      const auto text = std::string(trim(line.substr(colon + 1)));
      // A list may come in several fields.
      value = name == "link" && !value.empty() ? value + ", " + text : text;
    }
    return true;
  }

  /// An exception must not pass through C.
  template <typename Call>
  bool guarded(Call call) {
    try {
      if (call()) return true;
      ended_by_sink = true;
    } catch (...) {
      failure = std::current_exception();
    }
    return false;
  }
};

std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
  return static_cast<Transfer*>(user)->header_line({data, size * count}) ? size * count : 0;
}

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const auto bytes = std::as_bytes(std::span(data, size * count));
  return transfer.guarded([&] { return transfer.sink.body(bytes); }) ? bytes.size() : bytes.size() + 1;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<Transfer*>(user);
  return transfer.stop && transfer.stop() ? 1 : 0;
}

bool permanent(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

const std::string& HttpHead::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

std::string find_ca_bundle() {
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  for (const char* path : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"}) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

struct HttpClient::Curl {
  struct Free {
    void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  };
  std::function<bool()> stop;
  std::unique_ptr<CURL, Free> handle;
  std::array<char, CURL_ERROR_SIZE> reason{};
};

HttpClient::HttpClient(const HttpSettings& settings, std::function<bool()> stop) : curl_(std::make_unique<Curl>()) {
  static const Library library;
  curl_->stop = std::move(stop);
  curl_->handle.reset(curl_easy_init());
  auto* handle = curl_->handle.get();
  if (handle == nullptr) throw std::bad_alloc();
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(handle, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.connect_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stall_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 256L * 1024L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, settings.user_agent.c_str());
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, curl_->reason.data());
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  if (!settings.ca_bundle.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, settings.ca_bundle.c_str());
}

HttpClient::~HttpClient() = default;

HttpHead HttpClient::get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink) {
  url_origin(url);  // refuses file:// and the like
  auto* handle = curl_->handle.get();
  const auto list = make_list(headers);
  Transfer transfer{sink, curl_->stop};
  curl_->reason[0] = '\0';
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &transfer);
  const auto code = curl_easy_perform(handle);
  if (transfer.failure) std::rethrow_exception(transfer.failure);
  if (code == CURLE_OK || transfer.ended_by_sink) return transfer.head;
  const std::string reason = curl_->reason[0] != '\0' ? curl_->reason.data() : curl_easy_strerror(code);
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    throw IoError(loggable_url(url) + ": " + reason + ". SSL_CERT_FILE names a file with the certificates to trust");
  }
  if (permanent(code)) throw IoError(loggable_url(url) + ": " + reason);
  throw TransferCut(reason);
}

}  // namespace fsdp
